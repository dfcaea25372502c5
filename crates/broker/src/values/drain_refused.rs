/// Why a drain of listeners does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainRefused {
    NoListener,
    /// Clients of an earlier drain still go.
    Running,
}
