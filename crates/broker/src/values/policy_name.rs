//! Names of policies in a configuration: the balancer's and the embedding program's.

use std::cell::RefCell;

use serde::{Deserialize as _, Deserializer};
use tenbin_balancer::{Choosers, Policy};

thread_local! {
    /// Names and policies of the embedding program, while [`with`] parses. Derived deserializers take no context.
    static OWN: RefCell<Vec<(String, Policy)>> = const { RefCell::new(Vec::new()) };
}

/// Calls `parse`, in which [`deserialize`] knows the names of `own`.
pub(crate) fn with<T>(own: &Choosers, parse: impl FnOnce() -> T) -> T {
    /// Restores the names of before, after a panic too.
    struct Restored(Vec<(String, Policy)>);
    impl Drop for Restored {
        fn drop(&mut self) {
            OWN.set(std::mem::take(&mut self.0));
        }
    }
    let names = own.policies().map(|policy| (own.name_of(policy).to_owned(), policy)).collect();
    let _restored = Restored(OWN.replace(names));
    parse()
}

/// Reads the name of a policy.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Returns the policy of this name.
///
/// # Errors
/// There is none. The text lists the valid names.
fn parse(name: &str) -> Result<Policy, String> {
    OWN.with_borrow(|own| match own.iter().find(|(other, _)| other == name) {
        Some((_, policy)) => Ok(*policy),
        None => name.parse().map_err(|unknown| {
            let names = own.iter().map(|(name, _)| format!(", {name}")).collect::<String>();
            format!("{unknown}{names}")
        }),
    })
}
