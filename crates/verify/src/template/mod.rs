//! Templates: YAML files that describe a verification.

mod actions;
mod base;
mod error;
mod fault;
mod fields;
mod measure;
mod node;
mod systems;
mod target;
mod variants;

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;

pub use actions::{Action, Start, Targets, WaitFor};
pub use base::{Base, Runtime};
pub use error::{Mistake, Mistakes, Place};
pub use fault::{Fault, Scope};
pub use measure::{Measure, WarmUp};
pub use systems::{Acks, ClientEntry, Placing, Ready, Role, Start as StartBy, System, Topic};
pub use target::{Atom, InstanceRole, Member, MemberPart, Target};

pub(crate) use base::RUNTIMES;
pub(crate) use error::Complaints;
pub(crate) use error::suggestion;
pub(crate) use fault::{FAULTS, example};

use fields::{Fields, scalar};
use node::{Value, YamlNode};
use serde::{Deserialize, Serialize};

use crate::judge::assertion::Assertion;
use crate::judge::windows::Phase;
use crate::units::Time;

/// One variant of a template, read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// File as the user named it, for messages.
    pub file: String,
    /// The file's name without its ending.
    pub name: String,
    /// One line about it.
    pub title: Option<String>,
    /// Name of the variant; `default` in a file without variants.
    pub variant: String,
    /// Where it runs.
    pub base: Base,
    /// Systems under test.
    pub systems: Vec<System>,
    /// Their clients.
    pub clients: Vec<ClientEntry>,
    /// Faults.
    pub actions: Vec<Action>,
    /// Times.
    pub measure: Measure,
    /// Assertions, which have to hold in every run.
    pub assertions: Vec<Assertion>,
    /// Wanted outcome.
    pub expect: Expect,
    /// Values that others published, for a comparison. They are no assertions.
    pub published: Vec<Assertion>,
}

/// Wanted outcome of a variant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Expect {
    /// All assertions hold.
    #[default]
    Pass,
    /// At least one fails: the variant shows a weakness.
    Fail,
}

impl Template {
    /// Reads all variants of the file `file`, whose content is `text`.
    ///
    /// # Errors
    /// All mistakes of the file, with their places.
    pub fn read(file: &str, text: &str) -> Result<Vec<Self>, Mistakes> {
        Self::read_with(file, text, &[])
    }

    /// As [`Self::read`], with `settings`: paths of keys, as `measure.time` or `actions.kill.times`, and their values.
    ///
    /// # Errors
    /// As [`Self::read`]; also a path that leads nowhere.
    pub fn read_with(file: &str, text: &str, settings: &[(String, String)]) -> Result<Vec<Self>, Mistakes> {
        let mut complaints = Complaints::new(file);
        let Some(root) = YamlNode::parse(text, &mut complaints) else { return complaints.end(Vec::new()) };
        if !matches!(root.value, Value::Map(_)) {
            complaints.add(
                root.place,
                format!("the file is {}", root.description()),
                "want a map with systems, actions and more".to_owned(),
            );
            return complaints.end(Vec::new());
        }
        let mut variants = variants::expand(&root, &mut complaints);
        variants.iter_mut().for_each(|variant| variant.set_all(settings, &mut complaints));
        let read = |variant: variants::Variant| template(file, variant, &mut complaints);
        let templates = variants.into_iter().filter_map(read).collect::<Vec<_>>();
        complaints.end(templates)
    }
}

fn template(file: &str, variant: variants::Variant, complaints: &mut Complaints) -> Option<Template> {
    let tree = &variant.tree;
    let mut fields = Fields::of(tree, "", complaints)?;
    let base = base::read(fields.node("base"), complaints);
    let (systems, clients) = systems::read(fields.node("systems"), &base, tree.place, complaints);
    let actions = actions::read(fields.node("actions"), complaints);
    let first = actions.iter().filter_map(earliest).min();
    let measure = measure::read(fields.node("measure"), first, complaints);
    let names: Vec<_> = actions.iter().map(|action| action.name.as_str()).collect();
    let wanted = assertions(fields.list("assert"), "assert", &names, complaints);
    let published = assertions(fields.list("published"), "published", &names, complaints);
    let expect = fields.choice("expect", &[("pass", Expect::Pass), ("fail", Expect::Fail)], complaints);
    let title = fields.value("title", complaints);
    // Known here, so that a misspelt key finds them; they were read before.
    fields.node("variants");
    fields.node("sweep");
    fields.finish(complaints);
    if expect == Some(Expect::Fail) && wanted.is_empty() {
        let place = tree.get("expect").map_or(tree.place, |node| node.place);
        complaints.add(place, "expect: fail without assertions", "add \"assert: [ lost = 0 ]\"".to_owned());
    }
    Some(Template {
        name: stem(file),
        file: file.to_owned(),
        title,
        variant: variant.name,
        base,
        systems,
        clients,
        actions,
        measure,
        assertions: wanted,
        expect: expect.unwrap_or_default(),
        published,
    })
}

/// The earliest moment at which an action may begin, if that is no other action's end.
fn earliest(action: &Action) -> Option<Time> {
    match action.start {
        Start::At(time) | Start::Random(time, _) => Some(time),
        Start::After(..) => None,
    }
}

fn assertions(nodes: Vec<&YamlNode>, key: &str, names: &[&str], complaints: &mut Complaints) -> Vec<Assertion> {
    let mut all = Vec::new();
    for node in nodes {
        let Some(assertion) = scalar(node, key, complaints, str::parse::<Assertion>) else { continue };
        for phase in assertion.phases() {
            let actions: &[String] = match phase {
                Phase::During(actions) => actions,
                Phase::After(action) => std::slice::from_ref(action),
                Phase::Whole | Phase::Before => &[],
            };
            for action in actions.iter().filter(|action| !names.contains(&action.as_str())) {
                complaints.unknown(node.place, "action", action, names.iter().copied());
            }
            if names.is_empty() && *phase == Phase::Before {
                complaints.add(
                    node.place,
                    "no phase \"before\" without an action",
                    "leave the phase out, for the whole run".to_owned(),
                );
            }
        }
        all.push(assertion);
    }
    all
}

fn stem(file: &str) -> String {
    let path = std::path::Path::new(file);
    path.file_stem().map_or(file.to_owned(), |stem| stem.to_string_lossy().into_owned())
}
