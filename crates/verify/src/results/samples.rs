//! `links.csv`, `sockets.csv` and `instances.csv`: samples of each second after the warm-up, to the end of the drain.

use std::fmt::Write as _;
use std::str::FromStr;

/// A row of one of the files.
pub(crate) trait Sample: Sized {
    /// Names of the columns.
    const HEAD: &'static str;

    /// The row as a line, without its end.
    fn line(&self) -> String;

    /// The row of a line; a value that is absent or unreadable is zero.
    fn parse(head: &[&str], line: &str) -> Self;
}

/// Rows of a file's text.
pub(crate) fn read<S: Sample>(text: &str) -> Vec<S> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default().split(',').collect::<Vec<_>>();
    lines.map(|line| S::parse(&head, line)).collect()
}

/// A type with a field for each column of a file. Names of machines have no commas.
macro_rules! sample {
    ($(#[$of:meta])* $name:ident { $(#[$first_of:meta])* $first:ident: $first_type:ty, $($(#[$one_of:meta])* $one:ident: $type:ty,)* }) => {
        $(#[$of])*
        #[derive(Debug, Clone, Default, PartialEq)]
        pub(crate) struct $name {
            $(#[$first_of])* pub(crate) $first: $first_type,
            $($(#[$one_of])* pub(crate) $one: $type,)*
        }

        impl Sample for $name {
            const HEAD: &'static str = concat!(stringify!($first), $(",", stringify!($one)),*);

            fn line(&self) -> String {
                let mut line = self.$first.to_string();
                $(write!(line, ",{}", self.$one).expect("a String takes everything");)*
                line
            }

            fn parse(head: &[&str], line: &str) -> Self {
                let cells = line.split(',').collect::<Vec<_>>();
                Self { $first: cell(head, &cells, stringify!($first)), $($one: cell(head, &cells, stringify!($one)),)* }
            }
        }
    };
}

fn cell<T: FromStr + Default>(head: &[&str], cells: &[&str], name: &str) -> T {
    let at = head.iter().position(|column| *column == name);
    at.and_then(|at| cells.get(at)?.parse().ok()).unwrap_or_default()
}

sample! {
    /// Traffic of a link in a second.
    LinkSample {
        second: u64,
        from: String,
        to: String,
        bytes: u64,
        packets: u64,
        dropped: u64,
        /// Bytes that the link holds at the end of the second.
        queued_bytes: u64,
    }
}

sample! {
    /// One end of a TCP connection in a second. Times are shares of the second, the rest is of its end.
    SocketSample {
        second: u64,
        /// Machine of this end.
        from: String,
        /// Machine of the other end.
        to: String,
        port: u16,
        peer_port: u16,
        rtt_ms: f64,
        /// Congestion window in bytes.
        congestion_window: u64,
        /// Window that the other end allows.
        send_window: u64,
        /// Window that this end allows, at most.
        receive_window: u64,
        /// Bytes that were sent and not acknowledged.
        in_flight: u64,
        /// Bytes that this end's program has written and the kernel could not send yet.
        unsent: u64,
        /// Bytes that have arrived and this end's program has not read.
        unread: u64,
        /// Bytes that the other end acknowledged in the second.
        acknowledged: u64,
        /// Bytes that arrived in the second.
        received: u64,
        /// Bytes that were sent again in the second.
        retransmitted: u64,
        /// Time in which bytes were waiting or under way.
        busy: f64,
        /// Time in which the other end's window stopped this end.
        receiver_limited: f64,
        /// Time in which this end's buffer stopped its program.
        buffer_limited: f64,
    }
}

sample! {
    /// Processes of an instance or of clients in a second.
    InstanceSample {
        second: u64,
        /// Name of the instance, or [`MACHINE`].
        name: String,
        /// Processor time, in seconds a second.
        cpu: f64,
        /// Processors that it may use.
        processors: u32,
        resident_bytes: u64,
        read_bytes: u64,
        written_bytes: u64,
    }
}

sample! {
    /// Status of a node, from the moment at which it first answered so.
    RoleSample {
        /// Seconds after the warm-up.
        at: f64,
        name: String,
        /// Its role; "silent" for a node that does not answer.
        role: String,
        leader: String,
        epoch: u64,
        copies: u32,
        serving: bool,
    }
}

/// Name in `instances.csv` of the machine that all processes of a run share. No instance has a blank in its name.
pub(crate) const MACHINE: &str = "this machine";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_file() {
        let rows = [
            InstanceSample { second: 3, name: "b".to_owned(), cpu: 0.25, processors: 2, ..Default::default() },
            InstanceSample { second: 4, name: MACHINE.to_owned(), written_bytes: 7, ..Default::default() },
        ];
        let text: String = rows.iter().map(|row| format!("{}\n", row.line())).collect();
        assert_eq!(text.lines().next(), Some("3,b,0.25,2,0,0,0"));
        assert_eq!(read::<InstanceSample>(&format!("{}\n{text}", InstanceSample::HEAD)), rows);
    }

    #[test]
    fn columns_are_found_by_name_and_absent_ones_are_zero() {
        let rows: Vec<LinkSample> = read("to,second,new,bytes\nb,1,x,9\n,,,\n");
        assert_eq!((rows[0].second, rows[0].to.as_str(), rows[0].bytes, rows[0].dropped), (1, "b", 9, 0));
        assert_eq!(rows[1], LinkSample::default());
    }
}
