//! Where a report comes from: command line, date, machine and version.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::utc;

/// Command, date, machine and version of a report.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The command line, without secrets.
    pub command: String,
    /// When it was made.
    pub date: String,
    /// Processors, memory and system.
    pub machine: String,
    /// Version of the program.
    pub version: &'static str,
}

impl Origin {
    /// This process, now.
    pub fn here() -> Self {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        Self {
            command: command_line(std::env::args()),
            date: format!("{} UTC", utc::to_the_second(unix_ms)),
            machine: machine(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// The arguments as a shell reads them, without secrets: reports are passed on.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_=:./,@+%…".contains(c);
    let (mut words, mut is_secret) = (Vec::new(), false);
    for (place, argument) in arguments.enumerate() {
        let word = match argument.split_once('=') {
            _ if place == 0 => argument.rsplit('/').next().unwrap_or_default(),
            _ if is_secret => "…",
            Some((name, _)) if SECRETS.contains(&name) => &format!("{name}=…"),
            _ => &argument,
        };
        is_secret = SECRETS.contains(&argument.as_str());
        let is_safe = !word.is_empty() && word.chars().all(is_plain);
        words.push(if is_safe { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) });
    }
    words.join(" ")
}

/// Name, processors, memory and system of this machine, as far as they are known.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
        line.map(|(_, value)| value.trim().to_owned())
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let model = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let kib = field(&read("/proc/meminfo"), "MemTotal").and_then(|kib| kib.split(' ').next()?.parse::<f64>().ok());
    let memory = kib.map(|kib| format!("{:.1} GiB", kib / 1024.0 / 1024.0));
    let kernel = format!("{} {}", std::env::consts::OS, read("/proc/sys/kernel/osrelease").trim());
    let name = read("/proc/sys/kernel/hostname").trim().to_owned();
    let parts = [Some(name), Some(format!("{processors} × {model}")), memory, Some(kernel)];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Options with secret values.
const SECRETS: [&str; 2] = ["--password", "--token"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_repeated_but_for_its_secrets() {
        let words = ["/a b/tenbin", "run", "--password", "hush", "--token=hush", "--assert", "p99<5ms", "it's", ""];
        let line = command_line(words.into_iter().map(str::to_owned));
        assert_eq!(line, "tenbin run --password … --token=… --assert 'p99<5ms' 'it'\\''s' ''");
    }

    #[test]
    fn the_machine_has_processors_and_a_system() {
        let Origin { machine, date, .. } = Origin::here();
        assert!(machine.contains(" × ") && machine.contains(std::env::consts::OS), "{machine}");
        assert!(date.starts_with("20") && date.ends_with(" UTC"), "{date}");
    }
}
