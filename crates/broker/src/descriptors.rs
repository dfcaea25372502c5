//! File descriptors of this process: their limit, and how many connections it allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the process's soft limit of file descriptors to its hard limit. Returns it; `None` = no limit.
///
/// A broker in a separate process should call it before it starts: the soft limit is 1,024 on most systems. A program that
/// calls `select` must not.
///
/// # Errors
/// The system refuses.
pub fn raise_descriptor_limit() -> std::io::Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum)
}

/// Most simultaneous connections that leave the store and `threads` threads enough descriptors.
pub(crate) fn connections_maximum(configured: usize, threads: usize) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return configured };
    below(limit, threads).min(configured)
}

/// Logs that no more than `maximum` connections are possible, if more are configured.
pub(crate) fn log_lowered(configured: usize, maximum: usize) {
    if maximum < configured {
        let descriptors = getrlimit(Resource::Nofile).current;
        tracing::info!(
            descriptors,
            configured,
            maximum,
            "connections.maximum is lowered to fit the limit of file descriptors"
        );
    }
}

fn below(limit: u64, threads: usize) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let reserve = RESERVE + threads * PER_THREAD;
    limit - reserve.min(limit.div_ceil(2))
}

/// Descriptors for the store, listeners, password files and accepted sockets that are closed at once.
const RESERVE: usize = 128;

/// Descriptors of one thread's runtime.
const PER_THREAD: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_kept_and_is_at_most_half() {
        assert_eq!(below(20_000, 8), 20_000 - 128 - 32);
        assert_eq!(below(256, 64), 128);
        assert_eq!(below(u64::MAX, 1), usize::MAX - 132);
        assert_eq!(below(1, 1), 0);
    }
}
