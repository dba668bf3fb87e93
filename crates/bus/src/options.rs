//! What one subscription asks for.

/// The largest capacity of a subscription, in messages.
pub const MAX_CAPACITY: usize = 1 << 30;

/// The capacity of a subscription that names none, in messages.
pub const DEFAULT_CAPACITY: usize = 1024;

/// What happens to a message for a subscription that has as many waiting as its capacity says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// The publisher waits until there is room. The only choice that can make [`publish`](crate::Bus::publish) wait, so
    /// nobody gets it without asking.
    Block,
    /// The message that has waited longest goes, and is counted. The default.
    #[default]
    DropOldest,
    /// The new message goes, and is counted.
    DropNewest,
    /// The new message goes and is counted, and with it the subscription ends: what waits can be received, and then
    /// [`RecvError::Disconnected`](crate::RecvError::Disconnected).
    Disconnect,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) capacity: usize,
    pub(crate) overflow: Overflow,
    pub(crate) metadata: bool,
    pub(crate) replay: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { capacity: DEFAULT_CAPACITY, overflow: Overflow::default(), metadata: false, replay: false }
    }
}
