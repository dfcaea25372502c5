//! Programs that `verifications/systems/install` fetches.

use std::path::PathBuf;

/// Directory of fetched systems: `$TENBIN_SYSTEMS`, by default `~/.cache/tenbin/systems`.
fn directory() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("TENBIN_SYSTEMS").unwrap_or_else(|| {
        let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        cache.unwrap_or_default().join("tenbin/systems")
    })
}

/// The program `nats-server`: the fetched one if it exists, else the one in `PATH`.
pub fn nats_server() -> String {
    let fetched = directory().join("nats/nats-server");
    if fetched.exists() { fetched.display().to_string() } else { "nats-server".to_owned() }
}

/// Whether a program is there, fetched or in `PATH`.
pub fn has(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_in_path = std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    is_in_path || (name == "nats-server" && directory().join("nats").join(name).exists())
}

/// The directory with the jars of Kafka.
///
/// # Errors
/// They are not there. The text says how to fetch them.
pub fn kafka_jars() -> Result<String, String> {
    let jars = directory().join("kafka/libs");
    if jars.is_dir() {
        return Ok(jars.display().to_string());
    }
    Err(format!("no jars of Kafka in {}; fetch them with verifications/systems/install kafka", jars.display()))
}
