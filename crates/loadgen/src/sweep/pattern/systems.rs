//! Brokers that are measured together.

use std::net::SocketAddr;

use super::{Pattern, PatternArgs};
use crate::LoadgenError;
use crate::target::{PORT, RunningBroker, TargetArg};

/// Brokers that are measured together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct System {
    /// Name in reports.
    pub(super) name: String,
    /// Brokers, at least one.
    brokers: Vec<TargetArg>,
}

impl System {
    /// Systems of the arguments: all running brokers form one system; two of each kind to start form another.
    ///
    /// # Errors
    /// Running brokers beside some to start, a pattern with several brokers for a single one, or a name without an
    /// address.
    pub(super) async fn of(args: &PatternArgs, patterns: &[Pattern]) -> Result<Vec<Self>, LoadgenError> {
        let targets = &args.brokers.0;
        if targets.iter().all(TargetArg::is_started) {
            let two = |target: &TargetArg| Self {
                name: format!("2 × {}", target.name()),
                brokers: vec![target.clone(), target.clone()],
            };
            return Ok(targets.iter().map(two).collect());
        }
        if targets.iter().any(TargetArg::is_started) {
            return Err(refused("--brokers: brokers that run, or tenbin and mosquitto to start, not both"));
        }
        let needs_several = patterns.iter().any(|pattern| pattern.several);
        let brokers = match targets.as_slice() {
            [one] if needs_several => addresses_of(one).await?,
            several => several.to_vec(),
        };
        if needs_several && brokers.len() < 2 {
            return Err(refused("--brokers: MLT-… needs several, or a name with several addresses"));
        }
        let names: Vec<_> = brokers.iter().map(TargetArg::name).collect();
        Ok(vec![Self { name: names.join(", "), brokers }])
    }

    /// Starts the brokers of a pattern that do not run already.
    pub(super) async fn start(&self, pattern: Pattern) -> Result<Vec<RunningBroker>, LoadgenError> {
        let brokers = if pattern.several { &self.brokers[..] } else { &self.brokers[..1] };
        let mut running = Vec::new();
        for (number, broker) in brokers.iter().enumerate() {
            let mut broker = broker.start(PORT).await?;
            if running.iter().any(|other: &RunningBroker| other.name == broker.name) {
                broker.name = format!("{}-{}", broker.name, number + 1);
            }
            running.push(broker);
        }
        Ok(running)
    }
}

/// A broker for each address of the name, as with DNS round robin.
async fn addresses_of(target: &TargetArg) -> Result<Vec<TargetArg>, LoadgenError> {
    let TargetArg::Given { name, host, port, pid } = target else { return Ok(vec![target.clone()]) };
    let found = tokio::net::lookup_host((host.as_str(), port.unwrap_or(PORT))).await;
    let found = found.map_err(|error| LoadgenError::connect(host, error))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let [_, _, ..] = addresses.as_slice() else { return Ok(vec![target.clone()]) };
    let of_address = |address: &SocketAddr| TargetArg::Given {
        name: format!("{name} ({})", address.ip()),
        host: address.ip().to_string(),
        port: Some(address.port()),
        pid: *pid,
    };
    Ok(addresses.iter().map(of_address).collect())
}

fn refused(what: &str) -> LoadgenError {
    LoadgenError::Arguments(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;

    async fn systems(line: &str) -> Result<Vec<System>, LoadgenError> {
        let args = args(line);
        System::of(&args, &args.patterns()).await
    }

    #[tokio::test]
    async fn running_brokers_form_one_system_and_started_kinds_pairs() {
        let found = systems("all --brokers a=h:1,b=h:2").await.unwrap();
        assert_eq!((found.len(), found[0].brokers.len(), found[0].name.as_str()), (1, 2, "a, b"));
        let found = systems("all --brokers tenbin,mosquitto").await.unwrap();
        assert_eq!(
            found.iter().map(|system| system.name.as_str()).collect::<Vec<_>>(),
            ["2 × tenbin", "2 × mosquitto"]
        );
        assert!(found.iter().all(|system| system.brokers.len() == 2));
        assert!(systems("all --brokers tenbin,a=h:1").await.is_err());
    }

    #[tokio::test]
    async fn several_brokers_are_needed_for_patterns_that_have_several() {
        let error = systems("mlt-sgl --brokers a=127.0.0.1:1").await.unwrap_err();
        assert!(error.to_string().contains("MLT"), "{error}");
        assert_eq!(systems("sgl-sgl sgl-shd --brokers a=127.0.0.1:1").await.unwrap()[0].brokers.len(), 1);
    }

    #[tokio::test]
    async fn pattern_starts_needed_brokers_with_unique_names() {
        let brokers = ["a=h:1", "a=h:2"].map(|text| text.parse().unwrap()).to_vec();
        let system = System { name: "a".into(), brokers };
        let names = async |several| {
            let running = system.start(Pattern { several, shared: false }).await.unwrap();
            running.into_iter().map(|broker| broker.name).collect::<Vec<_>>()
        };
        assert_eq!(names(false).await, ["a"]);
        assert_eq!(names(true).await, ["a", "a-2"]);
    }
}
