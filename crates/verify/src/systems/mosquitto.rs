//! Eclipse Mosquitto.

use super::{InstancePlace, ReadyWhen, Startup, System};
use crate::line::Line;

/// Mosquitto with its defaults: anonymous clients and a private listener are the only settings, and a user that exists
/// in a namespace.
pub(super) struct Mosquitto;

impl System for Mosquitto {
    fn startup(&self, place: &InstancePlace<'_>) -> Result<Startup, String> {
        let port = place.port();
        let mut text = format!("listener {port} {}\nallow_anonymous true\nuser root\n", place.listen);
        text += &format!("persistence_location {}/\n", place.data.display());
        for (key, value) in &place.instance.config {
            text += &format!("{key} {value}\n");
        }
        let config = place.files.join("mosquitto.conf");
        let line = Line::new("mosquitto", ["-c".to_owned(), config.display().to_string()]);
        Ok(Startup { files: vec![(config, text)], prepare: Vec::new(), line, ready: ReadyWhen::Mqtt(port) })
    }
}
