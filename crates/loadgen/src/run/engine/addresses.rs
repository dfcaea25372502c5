use std::net::SocketAddr;

use crate::LoadgenError;
use crate::run::Broker;

/// Addresses of a plan's brokers, with all addresses of each name.
#[derive(Debug)]
pub(super) struct Addresses(Vec<Vec<SocketAddr>>);

impl Addresses {
    /// Resolves all names once. Turns are taken by connection number, not by the resolver's order of answers.
    pub(super) async fn resolve(brokers: &[Broker]) -> Result<Self, LoadgenError> {
        let mut all = Vec::with_capacity(brokers.len());
        for broker in brokers {
            let found = tokio::net::lookup_host((broker.host.as_str(), broker.port)).await;
            let addresses: Vec<_> = found.map_err(|error| LoadgenError::connect(&broker.address(), error))?.collect();
            if addresses.is_empty() {
                return Err(LoadgenError::connect(&broker.address(), "the name has no address"));
            }
            all.push(addresses);
        }
        Ok(Self(all))
    }

    /// All addresses of a broker in rotation: connection 0 begins with the first, connection 1 with the second, and so
    /// on.
    pub(super) fn in_turns(&self, broker: usize, connection: u32) -> impl Iterator<Item = SocketAddr> {
        let addresses = &self.0[broker];
        let turn = connection as usize % addresses.len();
        addresses[turn..].iter().chain(&addresses[..turn]).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(host: &str) -> Broker {
        Broker::new("b", host, 1883)
    }

    #[tokio::test]
    async fn addresses_of_a_name_are_taken_in_turns() {
        let addresses =
            Addresses(vec![vec![], ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|a| a.parse().unwrap()).into()]);
        let first =
            |connection| addresses.in_turns(1, connection).map(|address| address.to_string()).collect::<Vec<_>>();
        assert_eq!(first(0), ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]);
        assert_eq!(first(5), ["10.0.0.3:1", "10.0.0.1:1", "10.0.0.2:1"]);

        let resolved = Addresses::resolve(&[broker("127.0.0.1"), broker("::1")]).await.unwrap();
        assert!(resolved.in_turns(0, 7).eq(["127.0.0.1:1883".parse().unwrap()]));
        assert!(resolved.in_turns(1, 7).eq(["[::1]:1883".parse().unwrap()]));
    }

    #[tokio::test]
    async fn a_name_that_is_not_known_is_named() {
        let error = Addresses::resolve(&[broker("no such host")]).await.unwrap_err().to_string();
        assert!(error.starts_with("cannot connect to no such host:1883: "), "{error}");
        assert_eq!(broker("::1").address(), "[::1]:1883");
    }
}
