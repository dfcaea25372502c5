//! From a template to a plan.

use std::net::{IpAddr, Ipv4Addr};

use super::actions::{actions, phases};
use super::support::{need_of_runtime, support};
use super::times::begins;
use super::{Client, Disk, Instance, Machine, Need, Node, Plan};
use crate::kind::{Kind, Protocol};
use crate::rng::Rng;
use crate::template::{
    self, Acks, Action, Atom, Complaints, Fault, Member, MemberPart, Mistakes, Place, Role, Runtime, StartBy, System,
    Target, Targets, Template,
};
use crate::units::{Rate, Size};

pub(super) fn plan(template: &Template, seed: Option<u64>) -> Result<Plan, Mistakes> {
    let mut complaints = Complaints::new(&template.file);
    let seed = seed.unwrap_or(template.base.seed);
    let members = members(template);
    let machines = machines(template, &members);
    let instances = instances(template, &machines);
    let clients: Vec<_> =
        template.clients.iter().filter_map(|c| client(template, c, &instances, &mut complaints)).collect();
    check_load(template, &clients, &mut complaints);
    check_runtime(template, &mut complaints);
    check_agreement(template, &mut complaints);
    let mut needs = need_of_runtime(template.base.runtime);
    for action in &template.actions {
        check_targets(template, action, &members, &mut complaints);
        check_support(template, action, &members, &mut needs, &mut complaints);
        check_containers(template, action, &members, &mut complaints);
    }
    needs.extend(variables(template));
    needs.extend(programs(template, &clients));
    needs.sort();
    needs.dedup();
    let begins = begins(template, seed, &mut complaints);
    let phases = phases(template, &begins);
    let actions = actions(template, &begins, &members, seed);
    let plan = Plan {
        name: template.name.clone(),
        title: template.title.clone(),
        variant: template.variant.clone(),
        seed,
        runtime: template.base.runtime,
        user: template.base.user.clone(),
        sudo: template.base.sudo,
        pull: template.base.pull,
        nodes: nodes(template, &machines),
        machines,
        instances,
        clients,
        members,
        measure: template.measure,
        needs_maximum: template.clients.iter().any(|client| matches!(client.rate, Rate::OfMax(_))),
        phases,
        actions,
        assertions: template.assertions.clone(),
        expect: template.expect,
        published: template.published.clone(),
        needs,
        configs: Vec::new(),
    };
    complaints.end(plan)
}

/// Instances first, then clients, each in the order of the file.
fn members(template: &Template) -> Vec<Member> {
    let mut members = Vec::new();
    for system in &template.systems {
        for number in 1..=system.replicas {
            members.push(Member {
                name: instance_name(system, number),
                entry: system.name.clone(),
                node: system.placing.node.clone(),
                part: MemberPart::Instance,
            });
        }
    }
    for client in &template.clients {
        let part = match client.role {
            Role::Publisher => MemberPart::Publisher,
            Role::Subscriber => MemberPart::Subscriber,
        };
        let (name, node) = (client.name.clone(), client.placing.node.clone());
        members.push(Member { entry: name.clone(), name, node, part });
    }
    members
}

/// A system with one instance gives it its own name, so that the names of a template stay.
fn instance_name(system: &System, number: u32) -> String {
    if system.replicas == 1 { system.name.clone() } else { format!("{}-{number}", system.name) }
}

fn machines(template: &Template, members: &[Member]) -> Vec<Machine> {
    let external = |member: &Member| {
        let system = template.systems.iter().find(|system| system.name == member.entry)?;
        match &system.start {
            StartBy::External(address) => Some(address.clone()),
            _ => None,
        }
    };
    // The relay to an external program needs no node in the template: it is on the first one.
    let first = template.base.nodes.first().filter(|_| template.base.runtime == Runtime::Ssh);
    let first = first.map(|(name, _)| name.clone());
    let machine = |(index, member): (usize, &Member)| Machine {
        name: member.name.clone(),
        address: match template.base.runtime {
            Runtime::Processes => IpAddr::V4(Ipv4Addr::LOCALHOST),
            _ => lab_address(index),
        },
        node: member.node.clone().or_else(|| first.clone()),
        relays: external(member),
    };
    members.iter().enumerate().map(machine).collect()
}

/// Nodes that have a machine. Other runtimes ignore them.
fn nodes(template: &Template, machines: &[Machine]) -> Vec<Node> {
    let nodes = template.base.nodes.iter().filter(|_| template.base.runtime == Runtime::Ssh);
    let is_used = |name: &String| machines.iter().any(|machine| machine.node.as_ref() == Some(name));
    let used = nodes.filter(|(name, _)| is_used(name));
    used.map(|(name, address)| Node { name: name.clone(), address: *address }).collect()
}

/// Address that the lab gives to machine number `index`, from 0, in 10.77.0.0/16.
fn lab_address(index: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, (index / 250) as u8, (index % 250 + 1) as u8))
}

/// First port of instances that share the loopback address; each has ten.
const FIRST_PORT: u16 = 21_000;

fn instances(template: &Template, machines: &[Machine]) -> Vec<Instance> {
    let is_shared = template.base.runtime == Runtime::Processes;
    let mut all = Vec::new();
    for system in &template.systems {
        let first = all.len();
        for number in 1..=system.replicas {
            let name = instance_name(system, number);
            let address = machines.iter().find(|machine| machine.name == name).map(|machine| machine.address);
            let host =
                if is_shared { address.map_or_else(String::new, |address| address.to_string()) } else { name.clone() };
            let base = FIRST_PORT + 10 * all.len() as u16;
            let port = if is_shared { base } else { client_port(system) };
            // On loopback there is nothing between clients and a program outside of the lab.
            let door = match &system.start {
                StartBy::External(address) if is_shared => address.clone(),
                _ => format!("{host}:{port}"),
            };
            // A broker that is alone has no peers.
            let peer = system.kind.peer_port().filter(|_| system.kind != Kind::Tenbin || system.mode.is_some());
            let peer = peer.map(|port| if is_shared { base + 1 } else { port });
            all.push(Instance {
                machine: name.clone(),
                system: system.name.clone(),
                number,
                kind: system.kind,
                mode: system.mode,
                start: system.start.clone(),
                ready: system.ready.clone(),
                door,
                peer: peer.map(|port| format!("{host}:{port}")),
                peers: Vec::new(),
                config: system.config.clone(),
                topic: system.topic,
                disk: disk(template, system),
                probe: system.probe.clone(),
                environment: system.placing.environment.clone(),
                cpus: system.placing.cpus.clone(),
                name,
            });
        }
        let peers: Vec<_> = all[first..].iter().map(|instance| instance.peer.clone()).collect();
        for (index, instance) in all[first..].iter_mut().enumerate() {
            let others = peers.iter().enumerate().filter(|&(other, _)| other != index);
            instance.peers = others.filter_map(|(_, peer)| peer.clone()).collect();
        }
    }
    // Brokers read the record in etcd at their start.
    all.sort_by_key(|instance| instance.kind != Kind::Etcd);
    all
}

fn client_port(system: &System) -> u16 {
    let external = match &system.start {
        StartBy::External(address) => address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()),
        _ => None,
    };
    let ready = match system.ready {
        Some(template::Ready::Port(port)) => Some(port),
        _ => None,
    };
    external.or(ready).unwrap_or(system.kind.port())
}

/// Size of filesystems that faults need and the template does not give.
const DISK: Size = Size::new(1 << 30);

fn disk(template: &Template, system: &System) -> Option<Disk> {
    if matches!(system.start, StartBy::Image(_)) {
        return None;
    }
    let has = |is_wanted: fn(&Fault) -> bool| template.actions.iter().any(|action| is_wanted(&action.fault));
    let is_image = has(|fault| matches!(fault, Fault::PowerCut));
    let is_needed = is_image || has(|fault| matches!(fault, Fault::DiskFull { .. }));
    let size = system.disk.or(is_needed.then_some(DISK))?;
    Some(Disk { size, is_image })
}

fn client(
    template: &Template,
    client: &template::ClientEntry,
    instances: &[Instance],
    complaints: &mut Complaints,
) -> Option<Client> {
    let is_of = |instance: &&Instance| instance.system == client.to || instance.name == client.to;
    let doors: Vec<_> = instances.iter().filter(is_of).collect();
    let Some(first) = doors.first() else {
        let known = template.systems.iter().map(|system| system.name.as_str());
        let known = known.chain(instances.iter().map(|instance| instance.name.as_str()));
        let mut known: Vec<_> = known.collect();
        known.dedup();
        complaints.unknown(client.to_place, "system", &client.to, known);
        return None;
    };
    let protocol = if client.program.is_some() { Protocol::Command } else { first.kind.protocol() };
    if protocol == Protocol::Command && client.program.is_none() {
        complaints.add(
            client.place,
            format!("{} speaks to {}, whose protocol is unknown", client.name, client.to),
            "add \"command:\" with a client program, or \"kind:\" to the system".to_owned(),
        );
    }
    let can_lead = template.systems.iter().any(|system| system.name == first.system && can_lead(system));
    if client.begins_at.is_some() && (!can_lead || protocol != Protocol::Mqtt) {
        complaints.add(
            client.place,
            format!("{} begins at a role, and {} has no such instances for clients of MQTT", client.name, client.to),
            "remove begins_at".to_owned(),
        );
    }
    let is_mqtt = matches!(protocol, Protocol::Mqtt | Protocol::Command);
    let from_acks = client.acks.map(|acks| if acks == Acks::None { 0 } else { 1 });
    let from_qos = client.qos.map(|qos| if qos == 0 { Acks::None } else { Acks::All });
    let is_kafka = first.kind.protocol() == Protocol::Kafka && client.role == Role::Publisher;
    let entry = template::ClientEntry {
        qos: is_mqtt.then(|| client.qos.or(from_acks).unwrap_or(0)),
        acks: is_kafka.then(|| client.acks.or(from_qos).unwrap_or(Acks::All)),
        version: is_mqtt.then(|| client.version.unwrap_or(first.kind.version())),
        // A plan survives its file, which has neither names of the template's nodes nor places.
        to: String::new(),
        place: Place::default(),
        to_place: Place::default(),
        placing: template::Placing { node: None, ..client.placing.clone() },
        ..client.clone()
    };
    let (machine, system) = (client.name.clone(), first.system.clone());
    Some(Client {
        machine,
        system,
        protocol,
        doors: doors.iter().map(|instance| instance.door.clone()).collect(),
        entry,
    })
}

/// The load generator runs one entry of publishers, programs of the user, and clients of one further protocol.
fn check_load(template: &Template, clients: &[Client], complaints: &mut Complaints) {
    let mut publishers = template.clients.iter().filter(|client| client.role == Role::Publisher);
    let Some(publisher) = publishers.next() else {
        let place = template.clients.first().map(|client| client.place);
        let place = place.or(template.systems.first().map(|system| system.place)).unwrap_or_default();
        return complaints.add(
            place,
            "no client publishes",
            "add one, as in \"pub: { publishes_to: broker }\"".to_owned(),
        );
    };
    for other in publishers {
        complaints.add(
            other.place,
            format!(
                "publishes_to: {} and {} both publish, and this version runs one entry of publishers",
                publisher.name, other.name
            ),
            "make one entry of both, with count".to_owned(),
        );
    }
    let system = clients.iter().find(|client| client.entry.name == publisher.name).map(|client| &client.system);
    let protocol = clients.iter().find(|client| client.entry.program.is_none()).map(|client| client.protocol);
    for client in clients {
        let is_foreign = client.entry.program.is_none() && Some(client.protocol) != protocol;
        if system.is_some_and(|system| client.system != *system) || is_foreign {
            let place =
                template.clients.iter().find(|other| other.name == client.entry.name).map(|client| client.to_place);
            complaints.add(
                place.unwrap_or_default(),
                format!("{} and {} are clients of different systems", client.entry.name, publisher.name),
                "let all clients of a file connect to one system".to_owned(),
            );
        }
    }
}

/// Refuses systems and clients that the runtime cannot start where the template places them.
fn check_runtime(template: &Template, complaints: &mut Complaints) {
    let runtime = template.base.runtime;
    let is_one = |system: &&System| system.kind == Kind::Rabbitmq && system.replicas > 1;
    for system in template.systems.iter().filter(|system| runtime == Runtime::Processes && is_one(system)) {
        complaints.add(
            system.place,
            format!("{}: each node of RabbitMQ needs an address, and runtime processes has only one", system.name),
            "use runtime: namespaces".to_owned(),
        );
    }
    let systems =
        template.systems.iter().map(|system| (&system.name, system.place, Some(&system.start), &system.placing));
    let clients =
        template.clients.iter().map(|client| (&client.name, client.place, client.program.as_ref(), &client.placing));
    for (name, place, start, placing) in systems.chain(clients) {
        let has_image = matches!(start, Some(StartBy::Image(_)));
        if has_image && runtime != Runtime::Docker {
            complaints.add(
                place,
                format!("{name} has an image, but runtime {} starts no images", runtime.name()),
                "use runtime: docker, or replace image by command".to_owned(),
            );
        }
        if has_image && template.systems.iter().any(|system| system.name == *name && system.disk.is_some()) {
            complaints.add(
                place,
                format!("{name} is a container: containers have no disk of the lab"),
                "remove disk, or start it by a command".to_owned(),
            );
        }
        let is_external = matches!(start, Some(StartBy::External(_)));
        if runtime == Runtime::Ssh && placing.node.is_none() && !is_external {
            complaints.add(
                place,
                format!("{name} is on no node, but runtime ssh needs one"),
                "add \"node_name:\" with a node of base".to_owned(),
            );
        }
    }
}

/// A pair or cluster needs an engine that names its leader.
fn check_agreement(template: &Template, complaints: &mut Complaints) {
    let has_etcd = template.systems.iter().any(|system| system.kind == Kind::Etcd);
    let has_own = |system: &System| {
        let is_set = |key: &str| system.config.iter().any(|(known, _)| known == key);
        is_set("cluster.agreement") || is_set("cluster.etcd") || system.start != StartBy::Kind
    };
    for system in template.systems.iter().filter(|system| system.mode.is_some() && !has_own(system) && !has_etcd) {
        complaints.add(
            system.place,
            format!("{} is a pair or cluster without etcd", system.name),
            "add \"witness: { kind: etcd }\" to systems".to_owned(),
        );
    }
}

/// A container has its filesystem and its libraries from elsewhere.
fn check_containers(template: &Template, action: &Action, members: &[Member], complaints: &mut Complaints) {
    let lacks = match action.fault {
        Fault::DiskFull { .. } => "filesystem of the lab to fill",
        Fault::ClockSkew { .. } => "library of the lab that changes its clock",
        _ => return,
    };
    for system in template.systems.iter().filter(|system| matches!(system.start, StartBy::Image(_))) {
        if may_hit(action, system, members) {
            complaints.add(
                action.place,
                format!("{} is a container, which has no {lacks}", system.name),
                "choose another target".to_owned(),
            );
        }
    }
}

fn check_targets(template: &Template, action: &Action, members: &[Member], complaints: &mut Complaints) {
    let nodes: Vec<_> = template.base.nodes.iter().map(|(name, _)| name.clone()).collect();
    let tells_copies = |system: &System| system.mode.is_some() && system.start == StartBy::Kind;
    if action.wait_for.is_some() && !template.systems.iter().any(tells_copies) {
        complaints.add(
            action.place,
            format!("action {:?}: no system here tells its number of copies", action.name),
            "remove wait_for, or verify Tenbin with a mode".to_owned(),
        );
    }
    for target in action.all_targets() {
        target.check(members, &nodes, action.place, complaints);
        if target.has_roles() && !template.systems.iter().any(can_lead) {
            complaints.add(
                action.place,
                format!("{target}: no system here has a leader that the tool can ask for"),
                "name an instance, or \"any\"; a command may have a \"probe:\"".to_owned(),
            );
        }
    }
    if let Targets::Instances(target) = &action.targets {
        let ends = matches!(action.fault, Fault::Kill | Fault::Stop { .. } | Fault::Restart { .. });
        let acts_on_clients = matches!(
            action.fault,
            Fault::Pause | Fault::Command { .. } | Fault::CpuLoad { .. } | Fault::MemoryLoad { .. }
        );
        let is_client = |name: &String| template.clients.iter().any(|client| client.name == *name);
        // Roles are instances.
        let hit = target.resolve(members, |_| None, &mut Rng::new(0, ""));
        if let Some(client) = hit.iter().find(|name| !acts_on_clients && is_client(name)) {
            let name = action.fault.name();
            let (message, correction) = if ends {
                (format!("{name} of client {client} would end its ledger"), "pause it instead")
            } else {
                (format!("{name} acts on instances, and not on client {client}"), "name an instance")
            };
            complaints.add(action.place, message, correction.to_owned());
        }
    }
}

fn check_support(
    template: &Template,
    action: &Action,
    members: &[Member],
    needs: &mut Vec<Need>,
    complaints: &mut Complaints,
) {
    let target_systems = template.systems.iter().filter(|system| may_hit(action, system, members));
    let kinds: Vec<_> = target_systems.clone().map(|system| Some(system.kind)).collect();
    let kinds = if kinds.is_empty() { vec![None] } else { kinds };
    for kind in kinds {
        match support(&action.fault, template.base.runtime, kind) {
            Ok(more) => needs.extend(more),
            Err(reason) => {
                let (message, correction) = reason.split_once("; ").unwrap_or((&reason, ""));
                complaints.add(action.place, message, (!correction.is_empty()).then(|| correction.to_owned()));
            }
        }
    }
    if action.scope() == template::Scope::Instances && !matches!(action.fault, Fault::Command { .. }) {
        for system in target_systems.filter(|system| matches!(system.start, StartBy::External(_))) {
            complaints.add(
                action.place,
                format!("{} runs outside of the lab, so {} cannot act on it", system.name, action.fault.name()),
                "use a fault of its network, net.*".to_owned(),
            );
        }
    }
}

/// True if the tool can ask which instance of `system` leads.
fn can_lead(system: &System) -> bool {
    system.probe.is_some() || system.replicas > 1 && system.kind.has_leader()
}

/// True if a target of `action` may include an instance of `system`.
fn may_hit(action: &Action, system: &System, members: &[Member]) -> bool {
    let is_own = |name: &str| {
        members.iter().any(|member| member.entry == system.name && (member.name == name || member.entry == name))
    };
    let may = |target: &Target| {
        target.atoms().any(|atom| match atom {
            Atom::Name(name) => is_own(name),
            Atom::Node(node) => system.placing.node.as_ref() == Some(node),
            Atom::Role(_) => can_lead(system),
            Atom::Site(_) | Atom::Random(_) | Atom::Majority | Atom::Minority => true,
            Atom::Publishers | Atom::Subscribers => false,
        })
    };
    action.all_targets().into_iter().any(may)
}

/// Programs of the systems and clients, which every runtime on this machine needs.
fn programs(template: &Template, clients: &[Client]) -> Vec<Need> {
    let is_local = template.base.runtime != Runtime::Ssh;
    let is_started = |system: &&System| is_local && system.start == StartBy::Kind && system.kind != Kind::Tenbin;
    let program = |system: &System| system.kind.program().map(|name| Need::Program(name.to_owned()));
    let mut needs: Vec<_> = template.systems.iter().filter(is_started).filter_map(program).collect();
    let is_kafka = |system: &System| system.kind == Kind::Kafka;
    let of_kafka = |client: &Client| client.protocol == Protocol::Kafka;
    if template.systems.iter().filter(is_started).any(is_kafka) || is_local && clients.iter().any(of_kafka) {
        needs.extend([Need::Program("java".to_owned()), Need::KafkaJars]);
    }
    needs
}

/// Environment variables that values of the template name.
fn variables(template: &Template) -> Vec<Need> {
    let of_systems = template.systems.iter().flat_map(|system| system.config.iter().chain(&system.placing.environment));
    let of_clients = template.clients.iter().flat_map(|client| &client.placing.environment);
    let names = of_systems.chain(of_clients).flat_map(|(_, value)| crate::variables::names(value));
    names.map(Need::Variable).collect()
}
