//! Command lines of the program `docker` for the containers of a run.

use std::env;
use std::path::Path;

use crate::line::Line;
use crate::plan::Instance;

/// Directory of an instance's data in its container.
pub(crate) const DATA: &str = "/tmp/data";
/// Directory of an instance's files in its container.
pub(crate) const CONFIGS: &str = "/tmp/configs";
/// Directory in a container whose content joins the results of the run.
pub(crate) const RESULTS: &str = "/tmp/results";
/// Label of all containers; its value is the run.
const LABEL: &str = "tenbin.verify";
/// Variables that choose the daemon. An undo may happen in another environment.
const DAEMON: [&str; 2] = ["DOCKER_HOST", "DOCKER_CONTEXT"];

/// A run, as far as its containers depend on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    /// Name that no other run has: value of the label, and begin of the names of containers.
    pub(crate) name: &'a str,
    /// Directory of its working files.
    pub(crate) work: &'a Path,
    /// Directory of its results.
    pub(crate) results: &'a Path,
    /// Allows downloads of images.
    pub(crate) pull: bool,
}

impl Run<'_> {
    /// Name of the container of an instance.
    pub(crate) fn container(&self, instance: &str) -> String {
        format!("{}-{instance}", self.name)
    }

    /// Directories of the host that are in the container of an instance.
    pub(crate) fn mounts(&self, instance: &str) -> [(String, &'static str); 3] {
        let (work, results) = (self.work.display(), self.results.display());
        [
            (format!("{work}/machines/{instance}/data"), DATA),
            (format!("{work}/config/{instance}"), CONFIGS),
            (format!("{results}/files/{instance}"), RESULTS),
        ]
    }

    /// File with the environment of an instance's container while that is created. The list of processes does not show
    /// it, and the program `docker` itself does not use it.
    pub(crate) fn environment(&self, instance: &str) -> String {
        format!("{}/{instance}.env", self.work.display())
    }

    /// Creates the container of an instance, without a network, with the environment in its file.
    ///
    /// The lock outlives a killed caller until the daemon has the container; [`Self::remove`] waits for it.
    pub(crate) fn create(&self, instance: &Instance, image: &str) -> Line {
        let name = self.container(&instance.name);
        let label = format!("{LABEL}={}", self.name);
        let pull = if self.pull { "missing" } else { "never" };
        let results = self.results.display().to_string();
        let mut line: Vec<String> = ["--shared", &results, "docker", "create", "--name", &name, "--label", &label]
            .into_iter()
            .chain(["--hostname", &instance.name, "--network", "none", "--pull", pull])
            .map(String::from)
            .collect();
        let hosts = format!("{}/hosts:/etc/hosts:ro", self.work.display());
        let mounts = self.mounts(&instance.name).map(|(own, its)| format!("{own}:{its}"));
        line.extend(mounts.into_iter().chain([hosts]).flat_map(|mount| ["--volume".to_owned(), mount]));
        if !instance.cpus.is_empty() {
            let cpus = instance.cpus.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
            line.extend(["--cpuset-cpus".to_owned(), cpus]);
        }
        line.extend(["--env-file".to_owned(), self.environment(&instance.name), image.to_owned()]);
        Line::new("flock", line)
    }

    /// Starts a created container again and again; it ends with the container, and passes its output on.
    pub(crate) fn start(&self, instance: &str) -> Line {
        Line::new("docker", ["start".to_owned(), "--attach".to_owned(), self.container(instance)])
    }

    /// Removes all containers with the label of the run; the undo of each [`Self::create`].
    pub(crate) fn remove(&self) -> Vec<String> {
        // A container whose start was under way may need a second look.
        let script = format!(
            "for look in 1 2 3 4; do ids=$(docker ps --all --quiet --filter label={LABEL}={}) || exit; \
             [ -n \"$ids\" ] || exit 0; docker rm --force --volumes $ids; done; exit 1",
            self.name
        );
        let daemon = DAEMON.iter().filter_map(|name| Some(format!("{name}={}", env::var(name).ok()?)));
        let daemon = daemon.collect::<Vec<_>>();
        let environment = if daemon.is_empty() { Vec::new() } else { [vec!["env".to_owned()], daemon].concat() };
        let lock = ["flock".to_owned(), self.results.display().to_string()];
        let shell = ["sh".to_owned(), "-c".to_owned(), script];
        environment.into_iter().chain(lock).chain(shell).collect()
    }
}

/// Content of a file with these variables.
///
/// # Errors
/// A value with a line break, which the file cannot have. The text names its variable.
pub(crate) fn environment(variables: &[(String, String)]) -> Result<String, String> {
    let line = |(name, value): &(String, String)| match value.contains(['\n', '\r']) {
        true => Err(format!("the value of {name} has a line break, which the environment of a container cannot have")),
        false => Ok(format!("{name}={value}\n")),
    };
    variables.iter().map(line).collect()
}

/// Prints the identifier of a container, and the number of its first process; 0 if it does not run.
pub(crate) fn first_process(container: &str) -> Line {
    Line::new("docker", ["container", "inspect", "--format", "{{.Id}} {{.State.Pid}}", container])
}

/// One of `docker kill`, `docker pause` and more.
pub(crate) fn on(container: &str, command: &[&str]) -> Line {
    Line::new("docker", command.iter().copied().chain([container]))
}

/// Runs a command in a running container. The list of processes shows its environment.
pub(crate) fn exec(container: &str, line: &Line) -> Line {
    let variables = line.environment.iter();
    let variables = variables.flat_map(|(name, value)| ["--env".to_owned(), format!("{name}={value}")]);
    let arguments =
        ["exec".to_owned()].into_iter().chain(variables).chain([container.to_owned(), line.program.clone()]);
    Line::new("docker", arguments.chain(line.arguments.iter().cloned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_of_a_container_is_not_that_of_the_program_docker() {
        let variables = [("PATH".to_owned(), "/x y".to_owned()), ("EMPTY".to_owned(), String::new())];
        assert_eq!(environment(&variables).unwrap(), "PATH=/x y\nEMPTY=\n");
        let error = environment(&[("TWO".to_owned(), "a\nb".to_owned())]).unwrap_err();
        assert!(error.contains("TWO") && !error.contains('\n'), "{error}");
        let line = exec("c", &Line { environment: variables.to_vec(), ..Line::shell("true") });
        assert_eq!(line.environment, []);
        assert_eq!(line.arguments[..5], ["exec", "--env", "PATH=/x y", "--env", "EMPTY="]);
    }
}
