//! Auxiliary processes of a lab: the guard with its switch, the first process of each machine, and one supervisor for
//! each started command. All of them are this one function, in the helper program.

mod disks;
mod init;
mod machine;
mod machines;
mod supervisor;
mod tree;

use std::io::Write;

use crate::error::Error;
use crate::journal;
use crate::program;
use crate::protocol::{Settings, ToGuard, decoded, serve, standard_input};
use crate::switch::Switch;

/// Runs the helper of a lab and returns its exit code. `arguments` are those that follow the [`Helper`](crate::Helper)'s
/// own; users do not type them.
#[must_use]
pub fn guard_main(arguments: &[String]) -> i32 {
    let role = arguments.first().map(String::as_str).unwrap_or_default();
    let result = match (role, &arguments[arguments.len().min(1)..]) {
        ("lab", [settings]) => lab(settings),
        ("machine", [name, helper]) => init::run(name, helper),
        ("process", []) => supervisor::run(),
        ("journal", [directory]) => journal::guard(directory.as_ref()),
        _ => Err(Error::Failed("this command is for the program's own use".to_owned())),
    };
    match result {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            1
        }
    }
}

/// The guard: handles the program's calls, and returns when the program has ended.
fn lab(settings: &str) -> Result<(), Error> {
    let settings: Settings = decoded(settings)?;
    let (calls, answers) = standard_input().map_err(Error::io("take over standard input"))?;
    program::run(&["ip", "link", "set", "lo", "up"], "")?;
    let switch = Switch::start(settings.seed).map_err(Error::io("start the switch"))?;
    let machines = machines::Machines::new(settings, switch, answers.clone())?;
    serve(calls, &answers, move |call: ToGuard| machines.handle(call));
    Ok(())
}
