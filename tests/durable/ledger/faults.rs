use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// Injected system faults of a broker, see `faults.c`, a library that its process preloads.
pub(crate) struct Faults {
    directory: TempDir,
    file: File,
    library: Option<PathBuf>,
}

/// The failing operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failing {
    Sync = 0,
    Write = 1,
}

impl Faults {
    /// Faults that are all off. Without a C compiler they stay off, and a message says so.
    pub(crate) fn new() -> Self {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("the tests' directory is ours to write");
        let path = directory.path().join("faults");
        fs::write(&path, [0; 24]).expect("ours to write");
        let file = File::options().write(true).open(path).expect("just made");
        Self { directory, file, library: library() }
    }

    /// Environment of a broker with these faults.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let library = self.library.clone().map(|library| ("LD_PRELOAD", library));
        library.into_iter().chain([("TENBIN_FAULTS", self.directory.path().join("faults"))]).collect()
    }

    pub(crate) fn fail(&self, what: Failing) {
        self.set(what as u64, if matches!(what, Failing::Sync) { EIO } else { ENOSPC });
    }

    pub(crate) fn mend(&self, what: Failing) {
        self.set(what as u64, 0);
    }

    /// Makes the broker's time of day slow by `seconds`.
    pub(crate) fn set_clock_back(&self, seconds: u64) {
        self.set(2, -(seconds as i64) * 1_000_000_000);
    }

    /// Makes the broker's time of day fast by `seconds`.
    pub(crate) fn set_clock_ahead(&self, seconds: u64) {
        self.set(2, seconds as i64 * 1_000_000_000);
    }

    fn set(&self, place: u64, value: i64) {
        self.file.write_all_at(&value.to_ne_bytes(), place * 8).expect("ours to write");
    }
}

/// Path of the library, which is compiled once.
fn library() -> Option<PathBuf> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/durable/ledger/faults.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).args([source, "-ldl"]);
        if cfg!(target_os = "linux") && compiler.status().is_ok_and(|status| status.success()) {
            return Some(library);
        }
        assert!(std::env::var_os("CI").is_none(), "faults.c is not compiled: cc is needed");
        let _ =
            writeln!(std::io::stderr(), "skipped: faults of fdatasync, of writes and of the clock need Linux and cc");
        None
    };
    LIBRARY.get_or_init(compile).clone()
}

const EIO: i64 = 5;
const ENOSPC: i64 = 28;
