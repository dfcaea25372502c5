use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A configuration file of one test; removed with the handle.
pub(crate) struct ConfigFile {
    path: PathBuf,
}

impl ConfigFile {
    /// A configuration without a key that differs from its default.
    pub(crate) const DEFAULTS: &str = "policy = \"adaptive\"\n";

    /// A file with this text, or with the defaults if it is empty.
    pub(crate) fn new(text: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("config-{}-{}.toml", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        // The broker refuses a file without any key.
        let text = if text.is_empty() { Self::DEFAULTS } else { text };
        std::fs::write(&path, text).expect("the tests' directory is ours to write");
        Self { path }
    }

    /// A configuration that suppresses no log lines.
    pub(crate) fn logging_all() -> Self {
        Self::new("[log]\nlines_per_second_per_address = 0\nlines_per_second = 0")
    }

    pub(crate) fn path(&self) -> &str {
        self.path.to_str().expect("a target directory with a readable name")
    }
}

impl Drop for ConfigFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
