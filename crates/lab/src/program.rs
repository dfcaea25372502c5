//! Programs of the system that do one step.

use std::io::Write;
use std::process::{Command as Program, Stdio};

use crate::error::Error;

/// Runs a program to its end. Its messages are in the error if it fails.
pub(crate) fn run(line: &[impl AsRef<str>], input: &str) -> Result<(), Error> {
    let shown = line.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ");
    let [program, arguments @ ..] = line else { return Err(Error::Failed("an empty command".to_owned())) };
    let mut child = Program::new(program.as_ref())
        .args(arguments.iter().map(AsRef::as_ref))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::io(format!("start `{shown}`")))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that fails before it has read everything tells why by itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(Error::io(format!("wait for `{shown}`")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
    Err(Error::Failed(format!("`{shown}` failed: {}", said.trim())))
}
