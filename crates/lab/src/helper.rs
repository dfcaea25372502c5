//! The command that becomes the lab's own processes.

use crate::error::Error;

/// Command that runs [`guard_main`](crate::guard_main) with the arguments that follow it.
#[derive(Clone, Debug)]
pub struct Helper(Vec<String>);

impl Helper {
    /// A program and its first arguments, as `/usr/bin/tenbin-verify guard`. Use an absolute path.
    pub fn new(program: impl Into<String>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        Self(std::iter::once(program.into()).chain(arguments).collect())
    }

    /// The running program, with its first arguments for the helper.
    ///
    /// # Errors
    ///
    /// The program's path is unknown, or no UTF-8.
    pub fn this_program(arguments: &[&str]) -> Result<Self, Error> {
        let path = std::env::current_exe().map_err(Error::io("find the path of the running program"))?;
        let path = path.to_str().ok_or_else(|| Error::Failed(format!("{} is no UTF-8", path.display())))?;
        Ok(Self::new(path, arguments))
    }

    pub(crate) fn line(&self) -> &[String] {
        &self.0
    }
}
