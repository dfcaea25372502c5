//! Code of an embedding program at the events of its broker, and the handle of that program.

mod choosers;
mod every_event;
mod handle;
mod panics;
mod recorder;
mod spans;
mod stage;
mod verdicts;
mod webhooks;

/// The example of the page is the one that runs.
#[test]
fn page_has_the_example_of_embedding() {
    let example = include_str!("../../../examples/embed.rs");
    let code = example.split_once("use tenbin_broker").expect("an import").1;
    assert!(
        include_str!("../../../docs/embedding.md").contains(code),
        "the page's code differs from examples/embed.rs"
    );
}
