//! Policies of the caller's own.

use std::fmt;
use std::time::Duration;

use crate::{
    dispatch::Dispatch,
    group_view::View,
    load::{Availability, MemberLoad},
    nanos::Nanos,
    policy::{Policy, adaptive::weigh},
    rng::Rng,
    seats::Seats,
    standing::MemberId,
};

/// A policy of the caller's own: chooses the member for a message.
///
/// Booking, ordering keys and draining members stay the group's business. So does a message without a choice: where the
/// chooser panics, or returns `None`, no index of a member, or a member that is not ready, [`Policy::Adaptive`] chooses.
///
/// ```
/// use std::sync::Arc;
/// use tenbin_balancer::{Candidates, Chooser, Choosers, Dispatch, Group, MemberId, MemberLoad, Nanos, Rng};
///
/// struct Heaviest;
///
/// impl Chooser for Heaviest {
///     fn choose(&self, _: &Dispatch, candidates: &Candidates<'_>, _: &mut Rng) -> Option<usize> {
///         candidates.ready().max_by_key(|&index| candidates.weight(index))
///     }
/// }
///
/// let mut choosers = Choosers::default();
/// let policy = choosers.add("heaviest", Heaviest).expect("there is room");
/// let group = Group::with_choosers(policy, Arc::new(choosers));
/// for (id, weight) in [(1, 5), (2, 9)] {
///     group.join(MemberId(id), Arc::new(MemberLoad::new(Nanos(0))), weight, id, Nanos(0));
/// }
/// let chosen = group.members().pick(&Dispatch::default(), &mut Rng::new(1)).map(|member| *member.value());
/// assert_eq!(chosen, Some(2));
/// ```
pub trait Chooser: Send + Sync + 'static {
    /// Returns the index of the member to choose. Called for each message, on the publisher's thread; it must not wait.
    fn choose(&self, dispatch: &Dispatch, candidates: &Candidates<'_>, rng: &mut Rng) -> Option<usize>;
}

/// The members of a group as a [`Chooser`] sees them, by index in join order. Each figure is read when it is asked for.
///
/// # Panics
/// Methods with an index panic if it is not below [`len`](Self::len).
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    pub(crate) seats: &'a Seats,
    pub(crate) ids: &'a [MemberId],
    pub(crate) weights: &'a [u32],
    pub(crate) view: &'a View,
    pub(crate) at: Nanos,
}

impl Candidates<'_> {
    /// Number of members.
    #[inline]
    pub fn len(&self) -> usize {
        self.seats.loads().len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Indices of the members that are ready, do not drain, and are not [passed over](MemberLoad::is_passed_over).
    #[inline]
    pub fn ready(&self) -> impl Iterator<Item = usize> {
        let loads = self.seats.loads().iter().enumerate();
        loads.filter(|(_, load)| load.rank() == READY).map(|(index, _)| index)
    }

    /// Id of a member.
    pub fn id(&self, index: usize) -> MemberId {
        self.ids[index]
    }

    /// Weight of a member.
    pub fn weight(&self, index: usize) -> u32 {
        self.weights[index]
    }

    /// Whether a member can take messages.
    pub fn availability(&self, index: usize) -> Availability {
        self.load(index).availability()
    }

    /// Messages at the client by its last report, and those sent since.
    pub fn pending(&self, index: usize) -> u64 {
        self.load(index).pending()
    }

    /// Messages handed to a member that are neither written (QoS 0) nor acknowledged (QoS above 0).
    #[inline]
    pub fn in_flight(&self, index: usize) -> u64 {
        self.load(index).hot().outstanding().messages
    }

    /// t_p, the mean of a member's last five reported processing times; zero = unknown.
    pub fn reported_processing_time(&self, index: usize) -> Duration {
        Duration::from_nanos(self.load(index).processing_ns())
    }

    /// Predicted time until a member could begin with the message.
    pub fn predicted_wait(&self, index: usize) -> Duration {
        Duration::from_nanos(weigh(self.load(index).hot(), self.view, self.at.0).wait)
    }

    /// A member's turn in the group's rotation: smaller if it was chosen, or joined, longer ago.
    #[inline]
    pub fn turn(&self, index: usize) -> u64 {
        self.seats.turn(index)
    }

    #[inline]
    fn load(&self, index: usize) -> &MemberLoad {
        &self.seats.loads()[index]
    }
}

impl fmt::Debug for Candidates<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidates").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The choosers that groups may use, by name.
#[derive(Default)]
pub struct Choosers(Vec<(String, Box<dyn Chooser>)>);

/// A [`Chooser`] cannot be added under this name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChooserError {
    /// There are [`Choosers::MAX`] of them.
    TooMany,
    /// A policy has the name already.
    NameTaken(String),
}

impl Choosers {
    /// Maximum number of choosers.
    pub const MAX: usize = 16;

    /// Adds a chooser, and returns its policy.
    ///
    /// # Errors
    /// There are [`MAX`](Self::MAX) of them, or a policy has the name already.
    pub fn add(&mut self, name: &str, chooser: impl Chooser) -> Result<Policy, ChooserError> {
        if self.policy(name).is_some() || name.parse::<Policy>().is_ok() {
            return Err(ChooserError::NameTaken(name.to_owned()));
        }
        let number = u8::try_from(self.0.len()).ok().filter(|&number| usize::from(number) < Self::MAX);
        let number = number.ok_or(ChooserError::TooMany)?;
        self.0.push((name.to_owned(), Box::new(chooser)));
        Ok(Policy::Custom(number))
    }

    /// Policy of the chooser with this name.
    pub fn policy(&self, name: &str) -> Option<Policy> {
        let index = self.0.iter().position(|(other, _)| other == name)?;
        u8::try_from(index).ok().map(Policy::Custom)
    }

    /// The policies of all choosers, in the order of [`add`](Self::add).
    pub fn policies(&self) -> impl Iterator<Item = Policy> {
        (0..u8::try_from(self.0.len()).unwrap_or(u8::MAX)).map(Policy::Custom)
    }

    /// Name of a policy: its chooser's name, if it has a chooser here.
    pub fn name_of(&self, policy: Policy) -> &str {
        match policy {
            Policy::Custom(number) => {
                self.0.get(usize::from(number)).map_or_else(|| policy.name(), |(name, _)| &name[..])
            }
            policy => policy.name(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, number: u8) -> Option<&dyn Chooser> {
        self.0.get(usize::from(number)).map(|(_, chooser)| &**chooser)
    }
}

impl fmt::Debug for Choosers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl fmt::Display for ChooserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(f, "there are {} policies of your own already", Choosers::MAX),
            Self::NameTaken(name) => write!(f, "a policy has the name {name:?} already"),
        }
    }
}

impl std::error::Error for ChooserError {}

/// Rank of a member that is ready, does not drain, and is not passed over.
pub(crate) const READY: u64 = 0;
