//! States of a group and their transitions.
//!
//! ```text
//!             a member joins                       all have joined, or the rest were removed
//!   Empty ───────────────────► PreparingRebalance ────────────────────────► CompletingRebalance
//!     ▲                        │    ▲        ▲                                     │       │
//!     └────────────────────────┘    │        └─────────────────────────────────────┘       │ the leader
//!        no member is left          │        a member joins, leaves, or does not sync      │ has assigned
//!                                   │                                                      ▼
//!                                   └─────────────────────────────────────────────────── Stable
//!                                      a member joins, leaves, or times out
//! ```

/// State of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// No members, but possibly offsets.
    Empty,
    /// Waiting for the members to join.
    PreparingRebalance,
    /// All members have joined; waiting for the leader's assignment.
    CompletingRebalance,
    /// Members have their assignments.
    Stable,
    /// Consumer protocol: the target is to be computed.
    Assigning,
    /// Consumer protocol: members have not all reached the target.
    Reconciling,
    /// The group does not exist.
    Dead,
}

impl State {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Empty,
        Self::PreparingRebalance,
        Self::CompletingRebalance,
        Self::Stable,
        Self::Assigning,
        Self::Reconciling,
        Self::Dead,
    ];

    /// Kafka's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Assigning => "Assigning",
            Self::Reconciling => "Reconciling",
            Self::Dead => "Dead",
        }
    }

    /// Whether the transition is allowed.
    pub(super) const fn can_transition_to(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Empty | Self::CompletingRebalance | Self::Stable, Self::PreparingRebalance)
                | (Self::PreparingRebalance, Self::Empty | Self::CompletingRebalance)
                | (Self::CompletingRebalance, Self::Stable)
                | (_, Self::Dead)
        )
    }
}
