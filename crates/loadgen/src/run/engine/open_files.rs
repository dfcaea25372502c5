//! Limit on the open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::LoadgenError;
use crate::number::count;

/// Raises the limit of open files for `connections` connections, up to the hard limit.
///
/// # Errors
/// The hard limit is too low.
pub(super) fn allow(connections: u64) -> Result<(), LoadgenError> {
    let needed = connections.saturating_add(OTHERS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if is_enough(current, needed) {
        return Ok(());
    }
    // Take all that is allowed, as later runs in this process may need more. The check below shows whether it worked.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let current = getrlimit(Resource::Nofile).current;
    if is_enough(current, needed) { Ok(()) } else { Err(refused(connections, needed, current.unwrap_or_default())) }
}

/// Whether the limit suffices; `None` is unlimited.
fn is_enough(limit: Option<u64>, needed: u64) -> bool {
    limit.is_none_or(|limit| limit >= needed)
}

fn refused(connections: u64, needed: u64, limit: u64) -> LoadgenError {
    LoadgenError::Arguments(format!(
        "{} connections need {} open files, the limit is {}: raise it with ulimit -n",
        count(connections),
        count(needed),
        count(limit)
    ))
}

/// Open files that are no connections: standard streams, epoll, timers, output files.
const OTHERS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_named() {
        assert_eq!(
            refused(10_000, 10_064, 4_096).to_string(),
            "10,000 connections need 10,064 open files, the limit is 4,096: raise it with ulimit -n"
        );
    }

    #[test]
    fn more_than_there_can_be_is_refused_and_a_few_are_not() {
        allow(8).unwrap();
        if getrlimit(Resource::Nofile).maximum.is_some() {
            assert!(allow(u64::MAX).is_err());
        }
    }
}
