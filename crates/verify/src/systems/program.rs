//! Any program that the template starts by a command, or as a container.

use super::{InstancePlace, ReadyWhen, Startup, System, filled};
use crate::kind::Protocol;
use crate::line::Line;
use crate::template::StartBy;

/// A command or an image of the template.
pub(super) struct Program;

impl System for Program {
    fn startup(&self, place: &InstancePlace<'_>) -> Result<Startup, String> {
        let line = match &place.instance.start {
            StartBy::Command(command) => Line::shell(filled(command, place)),
            // The image determines the program.
            StartBy::Image(image) => Line::new(image, [""; 0]),
            _ => return Err("it has no command; add \"command:\"".to_owned()),
        };
        let config = place.files.join("settings");
        let text: String = place.instance.config.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        Ok(Startup {
            files: vec![(config, text)],
            prepare: Vec::new(),
            line,
            ready: match place.instance.kind.protocol() {
                Protocol::Mqtt => ReadyWhen::Mqtt(place.port()),
                _ => ReadyWhen::Port(place.port()),
            },
        })
    }
}
