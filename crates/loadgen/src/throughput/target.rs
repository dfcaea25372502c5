use std::str::FromStr;

use crate::LoadgenError;
use crate::child_broker::ChildBroker;

/// A broker as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetArg {
    /// `NAME=HOST:PORT[,pid=PID]`: one that runs already; with a process id its processor time is known.
    Given { name: String, address: String, pid: Option<u32> },
    /// `tenbin`: this program's own.
    Tenbin,
    /// `mosquitto`: the one that is installed.
    Mosquitto,
}

/// A broker that runs.
pub(super) struct RunningBroker {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) pid: Option<u32>,
    child: Option<ChildBroker>,
}

impl TargetArg {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Given { name, .. } => name,
            Self::Tenbin => "tenbin",
            Self::Mosquitto => "mosquitto",
        }
    }

    /// Starts the broker, unless it runs already.
    pub(super) async fn start(&self) -> Result<RunningBroker, LoadgenError> {
        let child = match self {
            Self::Given { name, address, pid } => {
                return Ok(RunningBroker { name: name.clone(), address: address.clone(), pid: *pid, child: None });
            }
            Self::Tenbin => ChildBroker::tenbin(None).await?,
            Self::Mosquitto => ChildBroker::mosquitto().await?,
        };
        Ok(RunningBroker {
            name: self.name().to_owned(),
            address: child.address().to_owned(),
            pid: Some(child.pid()),
            child: Some(child),
        })
    }
}

impl FromStr for TargetArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tenbin" => return Ok(Self::Tenbin),
            "mosquitto" => return Ok(Self::Mosquitto),
            _ => {}
        }
        let wanted = || "want NAME=HOST:PORT[,pid=PID], tenbin or mosquitto".to_owned();
        let (name, place) = text.split_once('=').ok_or_else(wanted)?;
        let (address, pid) = match place.split_once(",pid=") {
            Some((address, pid)) => (address, Some(pid.parse().map_err(|_| format!("{pid:?} is no process id"))?)),
            None => (place, None),
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(wanted)?;
        if name.is_empty() || host.is_empty() || port.parse::<u16>().is_err() {
            return Err(wanted());
        }
        Ok(Self::Given { name: name.to_owned(), address: address.to_owned(), pid })
    }
}

impl RunningBroker {
    /// A connection that was lost, or never made, is the broker's end, if it has ended.
    pub(super) fn blame(&mut self, error: LoadgenError) -> LoadgenError {
        self.child.as_mut().and_then(|child| child.check_alive().err()).unwrap_or(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_name_with_an_address_or_a_broker_to_start() {
        let given =
            |name: &str, address: &str, pid| TargetArg::Given { name: name.into(), address: address.into(), pid };
        assert_eq!("tenbin".parse(), Ok(TargetArg::Tenbin));
        assert_eq!("mosquitto".parse(), Ok(TargetArg::Mosquitto));
        assert_eq!("a=localhost:1883".parse(), Ok(given("a", "localhost:1883", None)));
        assert_eq!("b=[::1]:1883,pid=42".parse(), Ok(given("b", "[::1]:1883", Some(42))));
        for text in ["", "a", "a=b", "=b:1", "a=:1", "a=b:99999", "a=b:1,pid=x", "a=b:1,pid=-1"] {
            assert!(text.parse::<TargetArg>().is_err(), "{text}");
        }
    }
}
