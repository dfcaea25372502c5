use std::collections::HashMap;

use tenbin_codec::{TopicFilter, TopicName};

use super::check::{check, refused, topic_filter, topic_name};
use crate::LoadgenError;
use crate::run::{Audience, Doors, Plan, Spread};

/// Numbers for a plan's streams, receivers and units, the same in every process that has the plan.
#[derive(Debug)]
pub struct Layout {
    client_id_prefix: String,
    brokers: usize,
    doors: Doors,
    spread: Spread,
    publishers: u32,
    topics: u32,
    names: Names,
    receivers: Vec<Receiver>,
    units: Vec<Unit>,
    /// Deliveries of each message, by stream.
    copies: Vec<u64>,
}

/// A subscriber. Its number is its index in [`Layout::receivers`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    /// `PREFIX-sub-N`, where N is its number.
    pub client_id: String,
    /// Number of its audience in the plan.
    pub audience: usize,
    /// Index of the receiver in its audience.
    pub member: u32,
    /// Number of the broker that it connects to.
    pub broker: usize,
    /// The Topic Filter it subscribes to, `$share/…/` included.
    pub filter: String,
    /// Number of its unit, and its index in that unit.
    pub(super) unit: usize,
    pub(super) place: usize,
}

/// The members of an audience that connect to one broker, or to one system.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) audience: usize,
    pub(super) broker: usize,
    /// Whether the unit is a share group: one member gets each message.
    pub(super) is_shared: bool,
    /// Receiver numbers of the members.
    pub(super) receivers: Vec<u32>,
    streams: Streams,
}

/// Numbers of the matching streams of a unit's broker, in ascending order.
#[derive(Debug)]
enum Streams {
    /// All members have the same filter.
    Alike(Vec<u32>),
    /// Each member has its own filter.
    Each(Vec<Vec<u32>>),
}

impl Layout {
    /// Checks the plan and numbers its streams, receivers and units.
    ///
    /// # Errors
    /// The plan cannot be run: no broker, duplicate names, illegal topics or filters, a payload below 8 bytes, numbers
    /// out of range. The error is one line that names the setting.
    pub fn of(plan: &Plan) -> Result<Self, LoadgenError> {
        check(plan)?;
        let names = Names::of(plan)?;
        let mut layout = Self {
            client_id_prefix: plan.connection.client_id_prefix.clone(),
            brokers: plan.brokers.len(),
            doors: plan.doors,
            spread: plan.publishers.spread,
            publishers: plan.publishers.count,
            topics: plan.publishers.topics,
            copies: vec![0; (plan.publishers.count * plan.publishers.topics) as usize],
            receivers: Vec::new(),
            units: Vec::new(),
            names,
        };
        let index = Index::of(&layout)?;
        for (number, audience) in plan.audiences.iter().enumerate() {
            layout.add_audience(number, audience, &index)?;
        }
        layout.copies = layout.count_copies();
        Ok(layout)
    }

    /// Number of streams. Stream numbers are `publisher · topics + topic`.
    pub fn streams(&self) -> u32 {
        self.publishers * self.topics
    }

    /// The stream's topic.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn topic(&self, stream: u32) -> &str {
        &self.names.list[self.name_of(stream)]
    }

    /// Publisher number of a stream.
    pub fn publisher(&self, stream: u32) -> u32 {
        stream / self.topics
    }

    /// Broker number of a publisher.
    pub fn publisher_broker(&self, publisher: u32) -> usize {
        broker_of(self.spread, publisher, self.brokers)
    }

    /// Client Identifier of a publisher.
    pub fn publisher_client_id(&self, publisher: u32) -> String {
        format!("{}-pub-{publisher}", self.client_id_prefix)
    }

    /// Client Identifier of an idle connection.
    pub fn idle_client_id(&self, number: u32) -> String {
        format!("{}-idle-{number}", self.client_id_prefix)
    }

    /// All subscribers by number: in the order of the plan's audiences.
    pub fn receivers(&self) -> &[Receiver] {
        &self.receivers
    }

    /// Number of deliveries of each message of this stream.
    ///
    /// # Panics
    /// If there is no such stream.
    pub fn copies(&self, stream: u32) -> u64 {
        self.copies[stream as usize]
    }

    /// Units in the order of the plan's audiences, then of brokers; units without members are left out.
    pub(super) fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Streams that a receiver gets, or shares with its unit, in ascending order.
    pub(super) fn streams_for(&self, receiver: u32) -> &[u32] {
        let receiver = &self.receivers[receiver as usize];
        self.units[receiver.unit].streams_for(receiver.place)
    }

    /// Unit number of a receiver; `None` if there is no such receiver.
    pub(super) fn unit_of(&self, receiver: u32) -> Option<usize> {
        self.receivers.get(receiver as usize).map(|receiver| receiver.unit)
    }

    /// Significant digits of each receiver's latencies: 2, or 1 above 10,000 receivers to save memory.
    pub(super) fn receiver_digits(&self) -> u8 {
        if self.receivers.len() <= 10_000 { 2 } else { 1 }
    }

    fn add_audience(&mut self, number: usize, audience: &Audience, index: &Index) -> Result<(), LoadgenError> {
        let alike = !audience.filter.contains("{subscriber}");
        let mut unit_at: Vec<Option<usize>> = vec![None; self.brokers];
        for member in 0..audience.count {
            let broker = broker_of(audience.spread, member, self.brokers);
            let filter = audience.filter.replace("{subscriber}", &member.to_string());
            let place = if self.is_one_system() { 0 } else { broker };
            let unit = match unit_at[place] {
                Some(unit) => unit,
                None => {
                    let streams = if alike {
                        Streams::Alike(self.matching(&topic_filter(&audience.name, &filter)?, broker, index))
                    } else {
                        Streams::Each(Vec::new())
                    };
                    let is_shared = audience.share.is_some();
                    self.units.push(Unit { audience: number, broker, is_shared, receivers: Vec::new(), streams });
                    *unit_at[place].insert(self.units.len() - 1)
                }
            };
            if !alike {
                let streams = self.matching(&topic_filter(&audience.name, &filter)?, broker, index);
                self.units[unit].streams.push(streams);
            }
            self.add_receiver(audience, unit, (member, broker), filter)?;
        }
        Ok(())
    }

    fn add_receiver(
        &mut self,
        audience: &Audience,
        unit: usize,
        (member, broker): (u32, usize),
        filter: String,
    ) -> Result<(), LoadgenError> {
        let number = u32::try_from(self.receivers.len()).map_err(|_| refused("4294967295 subscribers at most"))?;
        let owner = &mut self.units[unit];
        self.receivers.push(Receiver {
            client_id: format!("{}-sub-{number}", self.client_id_prefix),
            audience: owner.audience,
            member,
            broker,
            filter: match &audience.share {
                Some(group) => format!("$share/{group}/{filter}"),
                None => filter,
            },
            unit,
            place: owner.receivers.len(),
        });
        owner.receivers.push(number);
        Ok(())
    }

    /// Whether all brokers are doors of one system.
    pub(super) fn is_one_system(&self) -> bool {
        self.doors == Doors::OneSystem
    }

    /// Whether `stream` is for `receiver`, or for its share group.
    pub(super) fn is_for(&self, stream: u32, receiver: u32) -> bool {
        self.streams_for(receiver).binary_search(&stream).is_ok()
    }

    /// Number of a message of `stream` among all messages of its publisher, which rotates over its topics.
    pub(super) fn message(&self, stream: u32, sequence: u32) -> u64 {
        u64::from(sequence) * u64::from(self.topics) + u64::from(stream % self.topics)
    }

    /// Number of messages of `stream` among the first `messages` of its publisher.
    pub(super) fn sequences_below(&self, stream: u32, messages: u64) -> u32 {
        let (topics, topic) = (u64::from(self.topics), u64::from(stream % self.topics));
        u32::try_from(messages.saturating_add(topics - 1 - topic) / topics).unwrap_or(u32::MAX)
    }

    /// Streams of publishers at this broker whose topics match, in ascending order; of any broker in one system.
    fn matching(&self, filter: &TopicFilter, broker: usize, index: &Index) -> Vec<u32> {
        let mut streams: Vec<u32> = index
            .names(filter)
            .into_iter()
            .flat_map(|name| self.streams_of(name))
            .filter(|&stream| self.is_one_system() || self.publisher_broker(self.publisher(stream)) == broker)
            .collect();
        streams.sort_unstable();
        streams
    }

    fn name_of(&self, stream: u32) -> usize {
        if self.names.by_publisher { stream as usize } else { (stream % self.topics) as usize }
    }

    fn streams_of(&self, name: usize) -> impl Iterator<Item = u32> {
        let step = if self.names.by_publisher { self.streams().max(1) } else { self.topics };
        (name as u32..self.streams()).step_by(step as usize)
    }

    fn count_copies(&self) -> Vec<u64> {
        let mut copies = vec![0; self.streams() as usize];
        let mut add = |streams: &[u32], times: u64| streams.iter().for_each(|&stream| copies[stream as usize] += times);
        for unit in &self.units {
            match &unit.streams {
                Streams::Alike(streams) => add(streams, if unit.is_shared { 1 } else { unit.receivers.len() as u64 }),
                Streams::Each(lists) => lists.iter().for_each(|streams| add(streams, 1)),
            }
        }
        copies
    }
}

impl Unit {
    /// Streams of the member with this index in the unit.
    pub(super) fn streams_for(&self, place: usize) -> &[u32] {
        match &self.streams {
            Streams::Alike(streams) => streams,
            Streams::Each(lists) => &lists[place],
        }
    }

    /// Sums of `number` over each member's streams. A share group has one sum, as its members share all streams.
    pub(super) fn sums(&self, number: impl Fn(u32) -> u64) -> Vec<u64> {
        let sum = |streams: &Vec<u32>| streams.iter().map(|&stream| number(stream)).sum::<u64>();
        match &self.streams {
            Streams::Alike(streams) if self.is_shared => vec![sum(streams)],
            Streams::Alike(streams) => vec![sum(streams); self.receivers.len()],
            Streams::Each(lists) => lists.iter().map(sum).collect(),
        }
    }
}

impl Streams {
    fn push(&mut self, streams: Vec<u32>) {
        if let Self::Each(lists) = self {
            lists.push(streams);
        }
    }
}

/// All topics. A topic that publishers share is listed once.
#[derive(Debug)]
struct Names {
    list: Vec<String>,
    by_publisher: bool,
}

impl Names {
    fn of(plan: &Plan) -> Result<Self, LoadgenError> {
        let publishers = &plan.publishers;
        let by_publisher = publishers.topic.contains("{publisher}");
        let owners = if by_publisher { publishers.count } else { publishers.count.min(1) };
        let mut list = Vec::with_capacity((owners * publishers.topics) as usize);
        for publisher in 0..owners {
            let own = publishers.topic.replace("{publisher}", &publisher.to_string());
            list.extend((0..publishers.topics).map(|topic| own.replace("{topic}", &topic.to_string())));
        }
        Ok(Self { list, by_publisher })
    }
}

/// Index that finds topics by filter.
struct Index {
    names: Vec<TopicName>,
    numbers: HashMap<TopicName, Vec<usize>>,
}

impl Index {
    fn of(layout: &Layout) -> Result<Self, LoadgenError> {
        let names: Vec<_> = layout.names.list.iter().map(|name| topic_name(name)).collect::<Result<_, _>>()?;
        let mut numbers: HashMap<_, Vec<usize>> = HashMap::with_capacity(names.len());
        for (number, name) in names.iter().enumerate() {
            numbers.entry(name.clone()).or_default().push(number);
        }
        Ok(Self { names, numbers })
    }

    /// Numbers of the names that match.
    fn names(&self, filter: &TopicFilter) -> Vec<usize> {
        if filter.has_wildcard() {
            let matching = self.names.iter().enumerate().filter(|(_, name)| filter.matches(name));
            return matching.map(|(number, _)| number).collect();
        }
        // Often each topic has one exact filter, for example if each sensor receives commands.
        TopicName::new(filter.text().clone()).ok().and_then(|name| self.numbers.get(&name).cloned()).unwrap_or_default()
    }
}

fn broker_of(spread: Spread, number: u32, brokers: usize) -> usize {
    match spread {
        Spread::InTurns => number as usize % brokers,
        Spread::Broker(broker) => usize::from(broker),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::example::{audience, broker, group, plan};

    fn two_brokers(audiences: Vec<Audience>) -> Plan {
        let mut plan = plan(audiences);
        plan.brokers.push(broker("b"));
        (plan.publishers.count, plan.publishers.topics) = (3, 2);
        plan
    }

    #[test]
    fn streams_and_receivers_are_numbered_in_the_plans_order() {
        let pair = Audience { count: 2, filter: "t/{subscriber}/+".into(), ..audience("pair", "") };
        let layout = Layout::of(&two_brokers(vec![pair, group("g", "t/#", 3)])).unwrap();
        let topics: Vec<_> = (0..layout.streams()).map(|stream| layout.topic(stream)).collect();
        assert_eq!(topics, ["t/0/0", "t/0/1", "t/1/0", "t/1/1", "t/2/0", "t/2/1"]);
        assert_eq!([0, 1, 2].map(|publisher| layout.publisher_broker(publisher)), [0, 1, 0]);
        let told: Vec<_> = layout
            .receivers()
            .iter()
            .map(|one| (&one.client_id[..], one.audience, one.member, one.broker, &one.filter[..]))
            .collect();
        let expected = [
            ("x-sub-0", 0, 0, 0, "t/0/+"),
            ("x-sub-1", 0, 1, 1, "t/1/+"),
            ("x-sub-2", 1, 0, 0, "$share/g/t/#"),
            ("x-sub-3", 1, 1, 1, "$share/g/t/#"),
            ("x-sub-4", 1, 2, 0, "$share/g/t/#"),
        ];
        assert_eq!(told, expected);
        assert_eq!((layout.publisher_client_id(2), layout.idle_client_id(9)), ("x-pub-2".into(), "x-idle-9".into()));
    }

    #[test]
    fn stream_goes_to_matching_filters_at_its_broker() {
        let each = Audience { count: 4, spread: Spread::Broker(0), ..audience("each", "t/{subscriber}/1") };
        let layout = Layout::of(&two_brokers(vec![each, group("g", "t/+/0", 4), audience("none", "u/#")])).unwrap();
        let streams: Vec<_> = (0..9).map(|receiver| layout.streams_for(receiver)).collect();
        // Publishers 0 and 2 are at the first broker.
        let expected: [&[u32]; 9] = [&[1], &[], &[5], &[], &[0, 4], &[2], &[0, 4], &[2], &[]];
        assert_eq!(streams, expected);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|stream| layout.copies(stream)), [1, 1, 1, 0, 1, 1]);
        assert_eq!(layout.units().iter().map(|unit| unit.receivers.len()).collect::<Vec<_>>(), [4, 2, 2, 1]);
        assert_eq!(layout.units()[0].sums(|stream| 10 + u64::from(stream)), [11, 0, 15, 0]);
        assert_eq!(layout.units()[1].sums(|stream| 10 + u64::from(stream)), [24]);
    }

    #[test]
    fn one_system_has_one_unit_for_each_audience() {
        let plan = two_brokers(vec![Audience { count: 3, ..audience("all", "t/+/1") }, group("g", "t/+/0", 4)]);
        let layout = Layout::of(&Plan { doors: Doors::OneSystem, ..plan }).unwrap();
        assert_eq!(layout.units().iter().map(|unit| unit.receivers.len()).collect::<Vec<_>>(), [3, 4]);
        let brokers: Vec<_> = layout.receivers().iter().map(|receiver| receiver.broker).collect();
        assert_eq!(brokers, [0, 1, 0, 0, 1, 0, 1]);
        assert_eq!((layout.streams_for(1), layout.streams_for(6)), (&[1, 3, 5][..], &[0, 2, 4][..]));
        assert_eq!([0, 1].map(|stream| layout.copies(stream)), [1, 3]);
    }

    #[test]
    fn message_numbers_follow_from_streams_and_back() {
        let layout = Layout::of(&two_brokers(vec![])).unwrap();
        assert_eq!((layout.message(3, 7), layout.message(2, 7)), (15, 14));
        assert_eq!([14, 15, 16].map(|messages| layout.sequences_below(3, messages)), [7, 7, 8]);
        assert_eq!([14, 15, 16].map(|messages| layout.sequences_below(2, messages)), [7, 8, 8]);
    }

    #[test]
    fn publishers_may_share_their_topics() {
        let mut plan = two_brokers(vec![Audience { count: 3, ..audience("all", "t/1") }]);
        plan.publishers.topic = "t/{topic}".into();
        plan.brokers.truncate(1);
        let layout = Layout::of(&plan).unwrap();
        assert_eq!((layout.topic(1), layout.topic(5), layout.publisher(5)), ("t/1", "t/1", 2));
        assert_eq!(layout.streams_for(2), [1, 3, 5]);
        assert_eq!((layout.copies(3), layout.copies(4)), (3, 0));
    }

    #[test]
    fn a_run_may_have_no_publishers_or_no_subscribers() {
        let mut plan = plan(vec![Audience { count: 0, ..audience("nobody", "#") }]);
        assert_eq!(Layout::of(&plan).unwrap().receivers(), []);
        plan.publishers.count = 0;
        assert_eq!(Layout::of(&plan).unwrap().streams(), 0);
    }

    #[test]
    fn illegal_plan_error_names_the_setting() {
        type Spoil = fn(&mut Plan);
        let cases: &[(Spoil, &str)] = &[
            (|plan| plan.brokers.clear(), "a run needs a broker"),
            (|plan| plan.brokers.push(broker("a")), "two brokers are called a"),
            (|plan| plan.publishers.topics = 2, "several topics need {topic} in their name"),
            (|plan| plan.publishers.topic = "t/#".into(), "topic \"t/#\": wildcard in a topic name [MQTT-4.7.0-1]"),
            (|plan| plan.publishers.payload = 7, "payload: 7 bytes, want 8 to 268369904"),
            (|plan| plan.publishers.qos = 3, "publishers: QoS 3, want 0, 1 or 2"),
            (|plan| plan.publishers.spread = Spread::Broker(1), "publishers: there is no broker 1, the first is 0"),
            (|plan| plan.audiences.push(audience("one", "#")), "two audiences are called one"),
            (
                |plan| plan.audiences.push(audience("two", "a#")),
                "audience two: filter \"a#\": misplaced wildcard in a topic filter [MQTT-4.7.1-1]",
            ),
            (
                |plan| plan.audiences.push(audience("two", "t/{topic}")),
                "audience two: {topic} stands for nothing in a filter, use + or {subscriber}",
            ),
            (
                |plan| plan.audiences.push(group("a/b", "#", 2)),
                "audience a/b: no share group can be called \"a/b\" [MQTT-4.8.2-2]",
            ),
            (
                |plan| plan.audiences.push(group("g", "{subscriber}", 2)),
                "audience g: a share group has one filter, without {subscriber}",
            ),
            (
                |plan| {
                    plan.audiences
                        .extend(["g", "h"].map(|name| Audience { share: Some("s".into()), ..group(name, "#", 2) }))
                },
                "audiences g and h are one share group",
            ),
        ];
        for (spoil, line) in cases {
            let mut plan = plan(vec![audience("one", "#")]);
            plan.publishers.topic = "t/{publisher}".into();
            spoil(&mut plan);
            assert_eq!(Layout::of(&plan).unwrap_err().to_string(), *line);
        }
    }
}
