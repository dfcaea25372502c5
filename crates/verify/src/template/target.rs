//! Targets of faults: expressions over instances and clients.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::{Complaints, Place, suggestion};
use super::fields::scalar;
use super::node::YamlNode;
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
    /// As [`Self::Role`], with the instances of the same number of other systems that have as many instances.
    Site(InstanceRole),
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
    /// It neither leads nor has a full copy.
    Spare,
}

/// Names of roles in templates.
pub(super) const ROLES: [(&str, InstanceRole); 3] =
    [("leader", InstanceRole::Leader), ("follower", InstanceRole::Follower), ("spare", InstanceRole::Spare)];

impl InstanceRole {
    /// Name in templates.
    pub(crate) fn name(self) -> &'static str {
        ROLES.iter().find(|(_, role)| *role == self).map_or("", |(name, _)| name)
    }
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
    pub(crate) fn read(nodes: &[&YamlNode], path: &str, complaints: &mut Complaints) -> Option<Self> {
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
        self.atoms().any(|atom| matches!(atom, Atom::Role(_) | Atom::Site(_)))
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
            Atom::Site(wanted) => site(members, member).any(|other| role(&other.name) == Some(*wanted)),
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

/// Number of an instance in its system, and the number of all instances of that system.
fn place(members: &[Member], one: &Member) -> Option<(usize, usize)> {
    let is_of_system = |other: &&Member| other.part == MemberPart::Instance && other.entry == one.entry;
    let number = members.iter().filter(is_of_system).position(|other| other.name == one.name)?;
    Some((number, members.iter().filter(is_of_system).count()))
}

/// Instances with the same number as `member`, in all systems that have as many instances as its own.
fn site<'m>(members: &'m [Member], member: &Member) -> impl Iterator<Item = &'m Member> {
    let at = place(members, member);
    members.iter().filter(move |other| at.is_some() && place(members, other) == at)
}

impl Member {
    /// True if a template may call it `name`. The only instance of a system is also its first one.
    fn is(&self, name: &str) -> bool {
        let is_first = || self.part == MemberPart::Instance && name.strip_suffix("-1") == Some(&self.name);
        self.name == name || self.entry == name || is_first()
    }
}

const WORDS: [&str; 8] =
    ["role:leader", "role:follower", "site:leader", "any", "majority", "minority", "publishers", "subscribers"];

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
        for (prefix, atom) in [("role:", Self::Role as fn(InstanceRole) -> Self), ("site:", Self::Site)] {
            let Some(role) = text.strip_prefix(prefix) else { continue };
            let known = ROLES.iter().find(|(name, _)| *name == role);
            return known.map(|(_, role)| atom(*role)).ok_or_else(|| {
                let names = ROLES.map(|(name, _)| name);
                format!("unknown role {role:?}: {}", suggestion(role, names).unwrap_or_default())
            });
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
            Self::Role(role) => write!(f, "role:{}", role.name()),
            Self::Site(role) => write!(f, "site:{}", role.name()),
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
    fn a_site_has_the_instances_of_the_same_number() {
        let mut members = members();
        for name in ["etcd-1", "etcd-2", "etcd-3", "witness"] {
            let entry = name.split('-').next().unwrap().to_owned();
            members.push(Member { name: name.to_owned(), entry, node: None, part: MemberPart::Instance });
        }
        let leads = |name: &str| match name {
            "broker-3" => Some(InstanceRole::Leader),
            "broker-1" => Some(InstanceRole::Follower),
            "broker-2" => Some(InstanceRole::Spare),
            _ => None,
        };
        let of = |text: &str| text.parse::<Target>().unwrap().resolve(&members, leads, &mut Rng::new(1, "")).join(" ");
        assert_eq!(of("site:leader"), "broker-3 etcd-3");
        assert_eq!(of("site:spare"), "broker-2 etcd-2");
        assert_eq!(of("broker, etcd, witness, sub, !site:leader"), "broker-1 broker-2 sub etcd-1 etcd-2 witness");
        assert_eq!("site:leader".parse::<Target>().unwrap().to_string(), "site:leader");
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
