//! Targets of faults: expressions over instances and clients.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::{Complaints, Place, suggestion};
use super::fields::scalar;
use super::node::Node;
use crate::rng::Rng;

/// A target: instances that any term includes, without those that a term excludes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Target {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    is_excluded: bool,
    atom: Atom,
}

/// A term of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Atom {
    /// An instance, or all instances of a system, or a client.
    Name(String),
    /// Instances that have a role when the fault begins.
    Role(InstanceRole),
    /// Some instances of the systems, drawn by the seed.
    Random(u32),
    /// More than half of the instances, drawn by the seed.
    Majority,
    /// The most instances that are less than half, at least one, drawn by the seed.
    Minority,
    /// All instances and clients of a node.
    Node(String),
    /// All clients that publish.
    Publishers,
    /// All clients that subscribe.
    Subscribers,
}

/// Role of an instance in its system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstanceRole {
    /// It accepts writes for the others.
    Leader,
    /// It copies the leader.
    Follower,
}

/// A process that a target may include.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Name, as `broker-1`.
    pub name: String,
    /// Its entry in `systems`, as `broker`.
    pub entry: String,
    /// Its node, if the template has some.
    pub node: Option<String>,
    /// Its part in the verification.
    pub part: MemberPart,
}

/// Part of a process in a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberPart {
    /// It belongs to a system under test.
    Instance,
    /// It publishes.
    Publisher,
    /// It subscribes.
    Subscriber,
}

impl Target {
    /// Reads a target: text with commas, or a list.
    pub(crate) fn read(nodes: &[&Node], path: &str, complaints: &mut Complaints) -> Option<Self> {
        let mut terms = Vec::new();
        for node in nodes {
            terms.extend(scalar(node, path, complaints, Self::from_str)?.terms);
        }
        (!terms.is_empty()).then_some(Self { terms })
    }

    /// The target of one name.
    pub fn name(name: &str) -> Self {
        Self { terms: vec![Term { is_excluded: false, atom: Atom::Name(name.to_owned()) }] }
    }

    /// All terms, those that exclude too.
    pub fn atoms(&self) -> impl Iterator<Item = &Atom> {
        self.terms.iter().map(|term| &term.atom)
    }

    /// True if the members depend on roles, which are only known when the fault begins.
    pub fn has_roles(&self) -> bool {
        self.atoms().any(|atom| matches!(atom, Atom::Role(_)))
    }

    /// Adds a mistake for each name that no member has.
    pub(crate) fn check(&self, members: &[Member], nodes: &[String], place: Place, complaints: &mut Complaints) {
        for atom in self.atoms() {
            match atom {
                Atom::Name(name) if !members.iter().any(|member| member.is(name)) => {
                    let mut known: Vec<&str> = members.iter().map(|member| member.entry.as_str()).collect();
                    known.extend(members.iter().map(|member| member.name.as_str()));
                    known.extend(WORDS);
                    known.dedup();
                    complaints.add(place, format!("unknown target {name:?}"), suggestion(name, known));
                }
                Atom::Node(name) if !nodes.contains(name) => {
                    complaints.unknown(place, "node", name, nodes.iter().map(String::as_str));
                }
                Atom::Random(count) => {
                    let instances = members.iter().filter(|member| member.part == MemberPart::Instance).count();
                    if *count as usize > instances {
                        complaints.add(
                            place,
                            format!("random({count}) of {instances} instances"),
                            format!("give at most random({instances})"),
                        );
                    }
                }
                _ => {}
            }
        }
    }

    /// Members of the target, in the order of `members`.
    ///
    /// `role` tells roles of instances; `rng` makes the draws. Excluded members are never drawn.
    pub(crate) fn resolve(
        &self,
        members: &[Member],
        role: impl Fn(&str) -> Option<InstanceRole>,
        rng: &mut Rng,
    ) -> Vec<String> {
        let has = |atom: &Atom, member: &Member| match atom {
            Atom::Name(name) => member.is(name),
            Atom::Role(wanted) => member.part == MemberPart::Instance && role(&member.name) == Some(*wanted),
            Atom::Node(node) => member.node.as_deref() == Some(node),
            Atom::Publishers => member.part == MemberPart::Publisher,
            Atom::Subscribers => member.part == MemberPart::Subscriber,
            Atom::Random(_) | Atom::Majority | Atom::Minority => false,
        };
        let is_excluded = |member: &Member| self.terms.iter().any(|term| term.is_excluded && has(&term.atom, member));
        let left: Vec<_> = members.iter().filter(|member| !is_excluded(member)).collect();
        let all = members.iter().filter(|member| member.part == MemberPart::Instance).count();
        let instances: Vec<_> = left.iter().filter(|member| member.part == MemberPart::Instance).copied().collect();
        let mut included: Vec<&str> = Vec::new();
        for Term { atom, .. } in self.terms.iter().filter(|term| !term.is_excluded) {
            let count = match atom {
                Atom::Random(count) => *count as usize,
                Atom::Majority => all / 2 + 1,
                Atom::Minority => ((all.max(1) - 1) / 2).max(1),
                _ => {
                    included.extend(left.iter().filter(|member| has(atom, member)).map(|member| member.name.as_str()));
                    continue;
                }
            };
            included.extend(rng.draw(&instances, count).into_iter().map(|member| member.name.as_str()));
        }
        let is_included = |member: &&&Member| included.contains(&member.name.as_str());
        left.iter().filter(is_included).map(|member| member.name.clone()).collect()
    }
}

impl Member {
    /// True if a template may call it `name`. The only instance of a system is also its first one.
    fn is(&self, name: &str) -> bool {
        let is_first = || self.part == MemberPart::Instance && name.strip_suffix("-1") == Some(&self.name);
        self.name == name || self.entry == name || is_first()
    }
}

const WORDS: [&str; 7] = ["role:leader", "role:follower", "any", "majority", "minority", "publishers", "subscribers"];

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let terms = text.split(',').map(str::trim).map(|term| {
            let (is_excluded, atom) = match term.strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, term),
            };
            atom.parse().map(|atom| Term { is_excluded, atom })
        });
        let terms = terms.collect::<Result<Vec<_>, _>>()?;
        if terms.iter().all(|term| term.is_excluded) {
            return Err(format!("{text:?} only excludes: name the included instances too, as in \"broker, {text}\""));
        }
        if terms
            .iter()
            .any(|term| term.is_excluded && matches!(term.atom, Atom::Random(_) | Atom::Majority | Atom::Minority))
        {
            return Err(format!("{text:?} excludes a random choice: exclude names, roles or nodes"));
        }
        Ok(Self { terms })
    }
}

impl FromStr for Atom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(role) = text.strip_prefix("role:") {
            return match role {
                "leader" => Ok(Self::Role(InstanceRole::Leader)),
                "follower" => Ok(Self::Role(InstanceRole::Follower)),
                _ => Err(format!(
                    "unknown role {role:?}: {}",
                    suggestion(role, ["leader", "follower"]).unwrap_or_default()
                )),
            };
        }
        if let Some(node) = text.strip_prefix("node:") {
            return Ok(Self::Node(node.to_owned()));
        }
        if let Some(count) = text.strip_prefix("random(").and_then(|rest| rest.strip_suffix(')')) {
            let count = count.trim().parse().ok().filter(|&count| count > 0);
            return count
                .map(Self::Random)
                .ok_or_else(|| format!("{text:?} draws no instances: give random(1) or more"));
        }
        let is_name =
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.');
        match text {
            "any" => Ok(Self::Random(1)),
            "majority" => Ok(Self::Majority),
            "minority" => Ok(Self::Minority),
            "publishers" => Ok(Self::Publishers),
            "subscribers" => Ok(Self::Subscribers),
            name if is_name => Ok(Self::Name(name.to_owned())),
            _ => Err(format!("{text:?} is no target: give a name, role:leader, any, random(2), majority or node:NAME")),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Term { is_excluded, atom }) in self.terms.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{}{atom}", if *is_excluded { "!" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Role(InstanceRole::Leader) => f.write_str("role:leader"),
            Self::Role(InstanceRole::Follower) => f.write_str("role:follower"),
            Self::Random(1) => f.write_str("any"),
            Self::Random(count) => write!(f, "random({count})"),
            Self::Majority => f.write_str("majority"),
            Self::Minority => f.write_str("minority"),
            Self::Node(node) => write!(f, "node:{node}"),
            Self::Publishers => f.write_str("publishers"),
            Self::Subscribers => f.write_str("subscribers"),
        }
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.to_string()
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Vec<Member> {
        let member = |name: &str, entry: &str, part| Member {
            name: name.to_owned(),
            entry: entry.to_owned(),
            node: (name == "broker-2").then(|| "n2".to_owned()),
            part,
        };
        let mut members: Vec<_> =
            (1..=3).map(|n| member(&format!("broker-{n}"), "broker", MemberPart::Instance)).collect();
        members.push(member("pub", "pub", MemberPart::Publisher));
        members.push(member("sub", "sub", MemberPart::Subscriber));
        members
    }

    fn resolved(text: &str, seed: u64) -> String {
        let leads = |name: &str| Some(if name == "broker-3" { InstanceRole::Leader } else { InstanceRole::Follower });
        text.parse::<Target>().unwrap().resolve(&members(), leads, &mut Rng::new(seed, "test")).join(" ")
    }

    #[test]
    fn terms_include_and_exclude() {
        for (text, names) in [
            ("broker", "broker-1 broker-2 broker-3"),
            ("broker, !broker-1", "broker-2 broker-3"),
            ("role:leader", "broker-3"),
            ("role:follower", "broker-1 broker-2"),
            ("broker, !role:leader", "broker-1 broker-2"),
            ("node:n2, publishers", "broker-2 pub"),
            ("subscribers, pub", "pub sub"),
            ("any, !broker-1, !broker-2", "broker-3"),
            ("random(3)", "broker-1 broker-2 broker-3"),
        ] {
            assert_eq!(resolved(text, 1), names, "{text}");
        }
        assert_eq!(resolved("majority", 5).split(' ').count(), 2);
        assert_eq!(resolved("minority", 5).split(' ').count(), 1);
    }

    #[test]
    fn draws_depend_on_the_seed_alone() {
        let draws: Vec<_> = (0..20).map(|seed| resolved("any", seed)).collect();
        assert_eq!(draws, (0..20).map(|seed| resolved("any", seed)).collect::<Vec<_>>());
        for name in ["broker-1", "broker-2", "broker-3"] {
            assert!(draws.iter().any(|draw| draw == name), "{draws:?}");
        }
    }

    #[test]
    fn wrong_targets_say_how_to_write_them() {
        for (text, wanted) in [
            ("role:leder", "did you mean \"leader\"?"),
            ("random(0)", "random(1) or more"),
            ("random(x)", "random(1) or more"),
            ("!broker", "name the included instances"),
            ("broker, !any", "exclude names, roles or nodes"),
            ("a b", "give a name"),
            ("", "give a name"),
        ] {
            let wrong = text.parse::<Target>().unwrap_err();
            assert!(wrong.contains(wanted), "{text}: {wrong}");
        }
    }
}
