//! Processes on loopback, each the leader of a process group.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{Output, Proc, Site, World, directories_here};
use crate::line::{Line, Programs};

/// Processes of this machine.
pub(crate) struct Processes {
    directory: PathBuf,
    results: PathBuf,
    programs: Programs,
    started: Mutex<Vec<Arc<Local>>>,
}

/// A process, which is the leader of its group.
struct Local {
    child: Mutex<Child>,
    pid: Pid,
}

impl Processes {
    /// Machines with their data in the working directory of `site`.
    pub(crate) fn new(site: &Site<'_>) -> Self {
        let [directory, results] = [site.work, site.results].map(Path::to_owned);
        Self { directory, results, programs: site.programs.clone(), started: Mutex::default() }
    }

    fn start(&self, machine: &str, line: &Line, out: Stdio, input: Stdio, log: &Path) -> Result<Arc<Local>, String> {
        fs::create_dir_all(self.data(machine)).map_err(|error| format!("cannot create the data directory: {error}"))?;
        let errors = appended(log)?;
        let mut command = command(line);
        command.process_group(0).stdin(input).stdout(out).stderr(errors);
        let child = command.spawn().map_err(|error| format!("cannot start {}: {error}", line.program))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("a process without a number")?;
        let local = Arc::new(Local { child: Mutex::new(child), pid });
        self.started.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&local));
        Ok(local)
    }
}

/// The command of a line. The kernel kills it with the thread that starts it, where `setpriv` exists.
fn command(line: &Line) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    let mut command = if setpriv.exists() {
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL", "--"]).arg(&line.program);
        command
    } else {
        Command::new(&line.program)
    };
    command.args(&line.arguments).envs(line.environment.iter().map(|(name, value)| (name, value)));
    command
}

fn appended(path: &Path) -> Result<File, String> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| format!("cannot open {}: {error}", path.display()))
}

impl World for Processes {
    fn listen(&self) -> &'static str {
        "127.0.0.1"
    }

    fn data(&self, machine: &str) -> PathBuf {
        self.directory.join(machine)
    }

    fn directories(&self, name: &str) -> Result<(PathBuf, PathBuf), String> {
        directories_here(&self.directory, &self.results, name)
    }

    fn programs(&self, _: &str) -> Programs {
        self.programs.clone()
    }

    fn spawn(&self, machine: &str, line: &Line, log: &Path) -> Result<Box<dyn Proc>, String> {
        let local = self.start(machine, line, appended(log)?.into(), Stdio::null(), log)?;
        Ok(Box::new(local))
    }

    fn spawn_with_stream(&self, machine: &str, line: &Line, log: &Path) -> Result<(Box<dyn Proc>, UnixStream), String> {
        let pair = || -> std::io::Result<(UnixStream, OwnedFd, OwnedFd)> {
            let (own, its) = UnixStream::pair()?;
            Ok((own, its.try_clone()?.into(), its.into()))
        };
        let (own, input, output) = pair().map_err(|error| format!("cannot make a pair of sockets: {error}"))?;
        let local = self.start(machine, line, output.into(), input.into(), log)?;
        Ok((Box::new(local), own))
    }

    fn exec(&self, _: &str, line: &Line) -> Result<Output, String> {
        let output = command(line).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("cannot start {}: {error}", line.program))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        Ok(Output { is_success: output.status.success(), stdout, stderr })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for local in self.started.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // A process that cannot be killed is reported by its own undo.
            let _ = local.kill();
        }
    }
}

impl Local {
    fn status(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait().ok().flatten()
    }

    /// Sends a signal to the group, whose members may outlive their leader.
    fn send(&self, signal: Signal) -> Result<(), String> {
        match kill_process_group(self.pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(format!("cannot send a signal to process {}: {error}", self.pid.as_raw_nonzero())),
        }
    }
}

impl Proc for Arc<Local> {
    fn terminate(&self) -> Result<(), String> {
        if self.status().is_none() {
            kill_process(self.pid, Signal::TERM).map_err(|error| format!("cannot send SIGTERM: {error}"))?;
        }
        Ok(())
    }

    fn kill(&self) -> Result<(), String> {
        self.send(Signal::KILL)?;
        let wait = |child: &mut Child| child.wait();
        wait(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner))
            .map(|_| ())
            .map_err(|error| format!("cannot wait for the end of a killed process: {error}"))
    }

    fn stop(&self, _: Option<Duration>) -> Result<(), String> {
        self.send(Signal::STOP)
    }

    fn resume(&self) -> Result<(), String> {
        self.send(Signal::CONT)
    }

    fn ended(&self, time: Duration) -> Option<String> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(status) = self.status() {
                return Some(status.to_string());
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    #[cfg(target_os = "linux")]
    fn usage(&self) -> Option<super::Usage> {
        let pid = u32::try_from(self.pid.as_raw_nonzero().get()).ok()?;
        tenbin_lab::Usage::of_tree(pid).filter(|_| self.status().is_none()).map(super::Usage::from)
    }
}
