//! The parent of one started command. Orphans among its descendants become its children, so that the tree stays whole.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command as Program, Stdio};

use rustix::process::{Pid, WaitOptions, wait};
use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::error::Error;
use crate::protocol::{decoded, line, standard_input};
use crate::signal::Exit;

/// Lines of a supervisor to the machine's first process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    Started { pid: u32 },
    Failed { reason: String },
    Exited { exit: Exit },
}

/// Starts the command of the first line of standard input, and returns when none of its descendants is left.
pub(super) fn run() -> Result<(), Error> {
    let (stream, _) = standard_input().map_err(Error::io("take over standard input"))?;
    let mut first = String::new();
    BufReader::new(&stream).read_line(&mut first).map_err(Error::io("read a command"))?;
    let command = decoded(&first)?;
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).map_err(|error| Error::io("adopt orphans")(error.into()))?;
    let report = |report: &Report| {
        // Without a reader the machine is at its end, and this process too.
        let _ = line(report).and_then(|line| (&stream).write_all(&line));
    };
    let main = match start(&command) {
        Ok(pid) => pid,
        Err(error) => {
            report(&Report::Failed { reason: error.to_string() });
            return Ok(());
        }
    };
    report(&Report::Started { pid: main });
    let main = i32::try_from(main).ok().and_then(Pid::from_raw);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == main => {
                let exit = Exit { code: status.exit_status(), signal: status.terminating_signal() };
                report(&Report::Exited { exit });
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No child is left.
            Err(_) => return Ok(()),
        }
    }
}

fn start(command: &Command) -> Result<u32, Error> {
    let mut program = Program::new(&command.program);
    program.args(&command.arguments).envs(command.environment.iter().map(|(name, value)| (name, value)));
    if let Some(directory) = &command.directory {
        program.current_dir(directory);
    }
    program.stdin(Stdio::null()).stdout(output(command.stdout.as_deref())?);
    program.stderr(output(command.stderr.as_deref())?);
    if let Some(path) = &command.stream {
        let stream = || -> io::Result<_> {
            let stream = UnixStream::connect(path)?;
            Ok((OwnedFd::from(stream.try_clone()?), OwnedFd::from(stream)))
        };
        let (input, output) = stream().map_err(Error::io(format!("connect to {}", path.display())))?;
        program.stdin(input).stdout(output);
    }
    let child = program.process_group(0).spawn();
    Ok(child.map_err(Error::io(format!("start {}", command.program.display())))?.id())
}

fn output(path: Option<&Path>) -> Result<Stdio, Error> {
    let open = |path: &Path| -> io::Result<File> { OpenOptions::new().create(true).append(true).open(path) };
    let opened = path.map(|path| open(path).map_err(Error::io(format!("open {}", path.display()))));
    Ok(opened.transpose()?.map_or_else(Stdio::null, Stdio::from))
}
