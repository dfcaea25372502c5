//! Code of an embedding program at the events of its broker, and the handle of that program.

mod choosers;
mod every_event;
mod handle;
mod panics;
mod recorder;
mod stage;
mod verdicts;
mod webhooks;

/// The example of README is the one that runs.
#[test]
fn readme_has_the_example_of_embedding() {
    let example = include_str!("../../../examples/embed.rs");
    let code = example.split_once("use tenbin_broker").expect("an import").1;
    assert!(include_str!("../../../README.md").contains(code), "README's code differs from examples/embed.rs");
}
