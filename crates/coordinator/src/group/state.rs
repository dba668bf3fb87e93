//! What a group can be doing, and how it goes on from there.
//!
//! ```text
//!             a member joins                       all have joined, or those that have not are out
//!   Empty ───────────────────► PreparingRebalance ────────────────────────► CompletingRebalance
//!     ▲                        │    ▲        ▲                                     │       │
//!     └────────────────────────┘    │        └─────────────────────────────────────┘       │ the leader
//!        nobody is left             │          somebody joins, leaves, or does not sync    │ has assigned
//!                                   │                                                      ▼
//!                                   └─────────────────────────────────────────────────── Stable
//!                                      somebody joins, leaves, or falls silent
//! ```

/// What a group is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// It has no members, but may have offsets.
    Empty,
    /// It waits for its members to join.
    PreparingRebalance,
    /// All members have joined; it waits for its leader to say who gets what.
    CompletingRebalance,
    /// Everybody has got its part.
    Stable,
    /// There is no such group.
    Dead,
}

impl State {
    /// Kafka's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }

    /// Whether this is how a group goes on.
    pub(super) const fn leads_to(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Empty | Self::CompletingRebalance | Self::Stable, Self::PreparingRebalance)
                | (Self::PreparingRebalance, Self::Empty | Self::CompletingRebalance)
                | (Self::CompletingRebalance, Self::Stable)
                | (_, Self::Dead)
        )
    }
}
