//! What operators see and remove: share groups in pages, the receivers of a topic, retained messages.

use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tenbin_admin::{ReceiverView, RetainedView};
use tenbin_codec::{TopicFilter, TopicName};

use super::hash_trie::Key;
use super::index::FilterIndex;
use super::retained::{Cursor, PageRoom, RetainedStore};
use super::subscribers::FilterEntry;
use super::{Naming, Router, SharedGroup};
use crate::durable::CommitPoint;

/// A page of retained messages, and the topic at which the next one begins.
pub(crate) type RetainedPage = (Vec<RetainedView>, Option<String>);

impl Router {
    /// Number of share groups.
    pub(crate) fn groups_total(&self) -> usize {
        self.index.groups_total()
    }

    /// Share groups with numbers above `after`, at most `most`, by number.
    pub(crate) fn groups_after(&self, after: u64, most: usize) -> Vec<Arc<SharedGroup>> {
        // The smallest numbers so far, the largest of them on top.
        let mut numbers = BinaryHeap::with_capacity(most + 1);
        for number in self.index.group_numbers().filter(|number| number.get() > after) {
            if numbers.len() < most {
                numbers.push(number);
            } else if let Some(mut largest) = numbers.peek_mut().filter(|largest| **largest > number) {
                *largest = number;
            }
        }
        numbers.into_sorted_vec().into_iter().filter_map(|number| self.index.group_by_number(number)).collect()
    }

    /// All share groups.
    pub(crate) fn all_groups(&self) -> Vec<Arc<SharedGroup>> {
        self.index.groups().collect()
    }

    /// How the rules name a group.
    pub(crate) fn naming(&self, group: &SharedGroup) -> Naming {
        self.index.naming(group)
    }

    /// The share group of a share name and a filter.
    pub(crate) fn group_named(&self, name: &str, filter: &str) -> Option<Arc<SharedGroup>> {
        let filter = TopicFilter::try_from(&format!("$share/{name}/{filter}")[..]).ok()?;
        self.index.group(&filter.shared()?)
    }

    /// The standing groups that may have dead letters of the groups of a share name, by number: see
    /// [`ShareRules::groups_of_letters`].
    ///
    /// [`ShareRules::groups_of_letters`]: crate::values::ShareRules::groups_of_letters
    pub(crate) fn groups_of_letters(&self, share_name: &str) -> Option<Vec<Arc<SharedGroup>>> {
        let names = self.index.groups_of_letters(share_name)?;
        let mut groups: Vec<_> = names.iter().filter_map(|name| self.index.group(name)).collect();
        groups.sort_unstable_by_key(|group| group.number());
        Some(groups)
    }

    /// Share names, or patterns of them, of groups whose dead letters a standing group may get; none for other groups: see
    /// [`ShareRules::senders_of_letters`].
    ///
    /// [`ShareRules::senders_of_letters`]: crate::values::ShareRules::senders_of_letters
    pub(crate) fn senders_of_letters(&self, group: &SharedGroup) -> Vec<String> {
        if group.stands() { self.index.senders_of_letters(group.name()) } else { Vec::new() }
    }

    /// The share group of this number.
    pub(crate) fn group_numbered(&self, number: NonZeroU64) -> Option<Arc<SharedGroup>> {
        self.index.group_by_number(number)
    }

    /// Receivers of a topic from place `from` on, at most `most`, and whether there are more.
    pub(crate) fn receivers(&self, topic: &TopicName, from: usize, most: usize) -> (Vec<ReceiverView>, bool) {
        let (mut found, mut place) = (Vec::new(), 0);
        self.index.visit_matches(topic, &mut |filter, entry| {
            let filter = String::from_utf8_lossy(filter);
            views(entry, &filter, topic, &mut |view| {
                if place >= from && found.len() <= most {
                    found.push(view());
                }
                place += 1;
            });
        });
        let has_more = found.len() > most;
        found.truncate(most);
        (found, has_more)
    }

    /// Retained messages that match `filter`, from behind topic `after` on.
    pub(crate) fn retained_page(&self, filter: &TopicFilter, after: Option<&str>, most: usize) -> RetainedPage {
        self.retained.views(filter, after, most, Instant::now())
    }

    /// Removes retained messages; returns the number of topics that had one, and the commit point.
    pub(crate) fn remove_retained<'a>(&self, topics: impl Iterator<Item = &'a str>) -> CommitPoint {
        topics.map(|topic| self.retained.remove(topic.as_bytes())).last().unwrap_or(CommitPoint::NOW)
    }
}

impl FilterIndex {
    fn visit_matches(&self, topic: &TopicName, visit: &mut impl FnMut(&[u8], &FilterEntry)) {
        let snapshot = self.snapshot();
        if let Some(entry) = snapshot.exact.get(&Key::new(topic.as_bytes(), self.hasher())) {
            visit(topic.as_bytes(), entry);
        }
        let levels: Vec<_> = topic.as_bytes().split(|&byte| byte == b'/').collect();
        snapshot.wildcards.visit_matches(&levels, self.hasher(), &mut Vec::new(), visit);
    }
}

/// Offers a view of each subscriber and share group of one filter.
fn views(entry: &FilterEntry, filter: &str, topic: &TopicName, offer: &mut impl FnMut(&dyn Fn() -> ReceiverView)) {
    entry.subscribers.for_each(|subscriber| {
        offer(&|| ReceiverView {
            filter: filter.to_owned(),
            client: Some(subscriber.rights.principal().client_id.as_str().to_owned()),
            group: None,
            qos: Some(subscriber.grant.options.qos as u8),
            allowed: subscriber.rights.may_receive(topic),
        });
    });
    entry.groups.for_each(|group| {
        let name = group.name().share_name.text().as_str();
        offer(&|| ReceiverView {
            filter: format!("$share/{name}/{filter}"),
            client: None,
            group: Some(name.to_owned()),
            qos: None,
            allowed: true,
        });
    });
}

impl RetainedStore {
    fn views(&self, filter: &TopicFilter, after: Option<&str>, most: usize, now: Instant) -> RetainedPage {
        let mut cursor = after.map(Cursor::at);
        let mut found = Vec::new();
        let room = PageRoom { messages: most, bytes: usize::MAX, visits: VISITS };
        self.page(filter, &mut cursor, room, now, |message| {
            let left = message.expires_at.map(|at| at.saturating_duration_since(now));
            found.push(RetainedView {
                topic: String::from_utf8_lossy(message.template.topic()).into_owned(),
                qos: message.qos as u8,
                bytes: message.template.len(),
                expires_in_seconds: left.as_ref().map(Duration::as_secs),
            });
        });
        (found, cursor.map(|cursor| cursor.topic()))
    }

    fn remove(&self, topic: &[u8]) -> CommitPoint {
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        self.take_out_of(&mut tree, topic)
    }
}

impl Cursor {
    /// The place behind a topic.
    fn at(topic: &str) -> Self {
        Self(topic.split('/').map(|level| level.as_bytes().into()).collect())
    }

    fn topic(&self) -> String {
        String::from_utf8_lossy(&self.0.join(&b'/')).into_owned()
    }
}

/// Levels of the tree of retained messages visited under one lock.
const VISITS: usize = 5000;
