//! A child process that starts again when it is killed, and whose lines are printed with its name.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenbin_kit::printable::printable;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// A program to run.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// Name before each line.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// Wait before the next start.
    pub(super) again_after: Option<Duration>,
}

impl Program {
    /// Runs the program until `stop` is true. Tells its process id by `pid` while it runs.
    ///
    /// # Errors
    /// It cannot be started, or its first run soon ends with an error: a new start would end alike.
    pub(super) async fn supervise(
        self,
        mut stop: watch::Receiver<bool>,
        pid: watch::Sender<Option<u32>>,
    ) -> Result<(), String> {
        let mut is_first = true;
        loop {
            let begin = Instant::now();
            let mut child = self.start().map_err(|error| format!("cannot start {}: {error}", self.path.display()))?;
            pid.send_replace(child.id());
            let ended = tokio::select! {
                ended = child.wait() => ended,
                () = stopped(&mut stop) => {
                    pid.send_replace(None);
                    return end(child).await.map_err(|error| format!("cannot end {}: {error}", self.name));
                }
            };
            pid.send_replace(None);
            let text = match &ended {
                Ok(status) => text_of(*status),
                Err(error) => error.to_string(),
            };
            print(&self.name, &format!("ended: {text}"));
            let is_error = ended.is_ok_and(|status| status.code().is_some());
            if is_error && is_first && begin.elapsed() < SOON {
                return Err(format!("{} has failed: {text}; its log tells why", self.name));
            }
            is_first = false;
            let Some(again_after) = self.again_after else { return Ok(()) };
            print(&self.name, &format!("starts again in {} s", again_after.as_secs_f32()));
            tokio::select! {
                () = sleep(again_after) => {}
                () = stopped(&mut stop) => return Ok(()),
            }
        }
    }

    fn start(&self) -> io::Result<Child> {
        // The kernel kills the program when this process is killed, where `setpriv` exists.
        let setpriv = Path::new("/usr/bin/setpriv");
        let mut command = if setpriv.exists() {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(&self.path);
            command
        } else {
            Command::new(&self.path)
        };
        // A group for each program: Ctrl-C of a terminal must reach this process alone.
        command.args(&self.arguments).process_group(0).kill_on_drop(true);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let (Some(out), Some(errors)) = (child.stdout.take(), child.stderr.take()) {
            tokio::spawn(print_lines(self.name.clone(), out));
            tokio::spawn(print_lines(self.name.clone(), errors));
        }
        Ok(child)
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Its sender outlives the programs.
    let _ = stop.wait_for(|is_stopped| *is_stopped).await;
}

/// Ends a child by SIGTERM, or kills it after [`END_WITHIN`].
async fn end(mut child: Child) -> io::Result<()> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process(pid, Signal::TERM)?;
        if timeout(END_WITHIN, child.wait()).await.is_ok() {
            return Ok(());
        }
    }
    child.kill().await
}

async fn print_lines(name: String, stream: impl AsyncRead + Unpin) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while stream.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        print(&name, String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
}

/// Prints a line behind the name of its program.
pub(super) fn print(name: &str, line: &str) {
    // Fails if nothing reads standard output.
    let _ = writeln!(io::stdout(), "{name:<7} | {}", printable(line));
}

fn text_of(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// A first run that ends with an error sooner is a wrong start.
const SOON: Duration = Duration::from_secs(3);
/// Time for a child to end by SIGTERM.
const END_WITHIN: Duration = Duration::from_secs(10);
