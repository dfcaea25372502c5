use std::process::Command;

use super::super::is_installed;
use super::super::programs::{built, is_built, source, text};

/// A kind of worker: a program of this directory, and how it acknowledges.
pub(super) struct Kind {
    pub(super) name: &'static str,
    program: Program,
    /// Argument that selects one of the program's ways to work; empty: it has one.
    style: &'static str,
    pub(super) acknowledges: Acknowledges,
}

enum Program {
    Python,
    Node,
    Java,
    Go,
    Shell,
}

/// When a worker acknowledges a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Acknowledges {
    BeforeWork,
    AfterWork,
}

/// Works in `on_message` on the main thread. The library writes the acknowledgement when `on_message` returns.
pub(super) const PAHO_PYTHON_FOREVER: Kind =
    Kind::new("paho Python loop_forever", Program::Python, "loop-forever", Acknowledges::AfterWork);

/// Works in `on_message` on the library's thread, which reads the next message before it writes an acknowledgement.
pub(super) const PAHO_PYTHON_START: Kind =
    Kind::new("paho Python loop_start", Program::Python, "loop-start", Acknowledges::AfterWork);

/// The library reads on when `handleMessage` calls back.
pub(super) const MQTT_JS_HANDLE_MESSAGE: Kind =
    Kind::new("MQTT.js handleMessage", Program::Node, "handle-message", Acknowledges::AfterWork);

/// The library acknowledges when the listener returns, which awaits nothing.
pub(super) const MQTT_JS_ON_MESSAGE: Kind =
    Kind::new("MQTT.js on('message')", Program::Node, "on-message", Acknowledges::BeforeWork);

pub(super) const MQTT_JS_ON_MESSAGE_REPORTS: Kind =
    Kind::new("MQTT.js on('message') with $load", Program::Node, "on-message-reports", Acknowledges::BeforeWork);

/// The library acknowledges a message when the message is in the queue of the callback.
pub(super) const HIVEMQ_BLOCKING: Kind =
    Kind::new("HiveMQ blocking callback", Program::Java, "blocking", Acknowledges::BeforeWork);

/// Works on a thread of the application, and calls `acknowledge` after the work.
pub(super) const HIVEMQ_MANUAL: Kind =
    Kind::new("HiveMQ manual acknowledgement", Program::Java, "manual", Acknowledges::AfterWork);

/// The library calls the router's handlers one after the other, and acknowledges when they return.
pub(super) const PAHO_GO: Kind = Kind::new("paho Go router", Program::Go, "", Acknowledges::AfterWork);

/// Acknowledges when the message is in the pipe to the shell's loop.
pub(super) const MOSQUITTO_SUB: Kind =
    Kind::new("mosquitto_sub in a pipe", Program::Shell, "", Acknowledges::BeforeWork);

impl Kind {
    const fn new(name: &'static str, program: Program, style: &'static str, acknowledges: Acknowledges) -> Self {
        Self { name, program, style, acknowledges }
    }

    /// The program, without its arguments.
    pub(super) fn program(&self) -> Vec<String> {
        let class_path = || format!("{}:{}", text(&built("java/lib").join("*")), text(&built("java/classes")));
        match self.program {
            Program::Python => vec!["python3".into(), "-B".into(), source("python/worker.py")],
            Program::Node => vec!["node".into(), source("node/worker.js")],
            Program::Java => vec!["java".into(), "-cp".into(), class_path(), "HiveMqWorker".into()],
            Program::Go => vec![text(&built("go/worker"))],
            Program::Shell => vec!["bash".into(), source("shell/worker.sh")],
        }
    }

    /// Argument of the program after its factor.
    pub(super) fn style(&self) -> Option<&'static str> {
        (!self.style.is_empty()).then_some(self.style)
    }

    pub(super) fn is_installed(&self) -> bool {
        let probe = "import paho.mqtt, sys; sys.exit(int(paho.mqtt.__version__.split('.')[0]) < 2)";
        let runs = |what, program, argument, statuses: &[i32]| {
            is_installed(what, Command::new(program).arg(argument), statuses)
        };
        match self.program {
            Program::Python => {
                is_installed("Paho for Python, version 2", Command::new("python3").args(["-c", probe]), &[0])
            }
            Program::Node => {
                runs("Node.js", "node", "--version", &[0]) && is_built("mqtt.js", &built("node/node_modules"))
            }
            Program::Java => {
                runs("Java", "java", "-version", &[0])
                    && is_built("HiveMqWorker", &built("java/classes/HiveMqWorker.class"))
            }
            Program::Go => is_built("Paho for Go", &built("go/worker")),
            Program::Shell => runs("mosquitto_sub", "mosquitto_sub", "--help", &[0, 1]),
        }
    }
}
