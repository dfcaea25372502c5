//! Metrics of the process, with the names that all Prometheus clients use.

use std::time::SystemTime;

use tenbin_admin::{Exposition, Kind};

/// Writes version and start of the program, and the metrics of this process that the system tells. `started_at` is its
/// start.
pub fn write_process_metrics(into: &mut Exposition, started_at: SystemTime) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    into.add("tenbin_build_info", Kind::Gauge, "1, with the version as label.", &version, 1.0);
    let mut add = |name, kind, help, value: Option<f64>| {
        value.into_iter().for_each(|value| into.add(name, kind, help, &[], value));
    };
    let started = started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    add("process_start_time_seconds", Kind::Gauge, "Start of the broker, in seconds since 1970.", Some(started));
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields behind the name of the program, which may hold anything.
    let fields: Vec<_> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    let ticks = field(11).zip(field(12)).map(|(user, system)| (user + system) / TICKS_A_SECOND);
    add("process_cpu_seconds_total", Kind::Counter, "Processor time of user and system.", ticks);
    add("process_threads", Kind::Gauge, "Threads of the process.", field(17));
    add("process_virtual_memory_bytes", Kind::Gauge, "Virtual memory.", field(20));
    let resident = field(21).map(|pages| pages * rustix::param::page_size() as f64);
    add("process_resident_memory_bytes", Kind::Gauge, "Resident memory.", resident);
    // Linux since 6.2 tells the number as the size of the directory, so that no count is needed.
    let descriptors =
        std::fs::metadata("/proc/self/fd").map(|directory| directory.len()).ok().filter(|&count| count > 0);
    add("process_open_fds", Kind::Gauge, "Open file descriptors.", descriptors.map(|count| count as f64));
    let maximum = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    add("process_max_fds", Kind::Gauge, "Limit of file descriptors.", maximum.map(|count| count as f64));
}

/// Unit of the processor times in `/proc`, which is the same on all Linux systems.
const TICKS_A_SECOND: f64 = 100.0;
