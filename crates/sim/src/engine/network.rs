//! The network between clients and broker: connections that deliver late and in pieces, stall, and break.
//!
//! Each direction of a connection is a buffer, and bytes move when the simulation decides so. The two ends learn of a
//! break at different times: a cut connection is over for its client, while the broker still receives what was sent;
//! one that the broker has closed is over for its client once it has read everything.

use std::collections::BTreeMap;

use mainstem_disk::fault::Rng;

use super::pick;

/// Identifies a connection. Numbers are never reused.
pub(crate) type LinkId = usize;

/// How connections misbehave in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetworkPlan {
    /// Chance in 100 that only some of the bytes are delivered.
    pub(crate) pieces: u64,
    /// Connections cut per 10,000 steps.
    pub(crate) cuts: u64,
}

impl NetworkPlan {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        Self { pieces: pick(rng, &[0, 5, 50]), cuts: pick(rng, &[0, 20, 100]) }
    }
}

/// A connection of a client `C`.
#[derive(Debug)]
pub(super) struct Link<C> {
    pub(super) client: C,
    /// Bytes on their way to the broker.
    pub(super) up: Vec<u8>,
    /// Bytes on their way to the client.
    pub(super) down: Vec<u8>,
    /// The client is gone, and the broker has not noticed.
    pub(super) is_cut: bool,
    /// When the broker closed it. The client still reads what is on its way.
    pub(super) closed_ms: Option<u64>,
    is_stalled: bool,
}

impl<C> Link<C> {
    /// Whether the client can receive something: bytes, or the end of the connection.
    fn has_input(&self) -> bool {
        !self.is_cut && (!self.down.is_empty() || self.closed_ms.is_some())
    }
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Network<C> {
    links: BTreeMap<LinkId, Link<C>>,
    next: LinkId,
    plan: NetworkPlan,
}

impl<C: Copy> Network<C> {
    pub(super) fn new(plan: NetworkPlan) -> Self {
        Self { links: BTreeMap::new(), next: 0, plan }
    }

    pub(super) fn cut_rate(&self) -> u64 {
        self.plan.cuts
    }

    pub(super) fn connect(&mut self, client: C) -> LinkId {
        let id = self.next;
        self.next += 1;
        let (up, down) = (Vec::new(), Vec::new());
        self.links.insert(id, Link { client, up, down, is_cut: false, closed_ms: None, is_stalled: false });
        id
    }

    /// Whether either end still has the connection.
    pub(crate) fn contains(&self, id: LinkId) -> bool {
        self.links.contains_key(&id)
    }

    /// The client of every connection, and whether it is cut.
    pub(crate) fn clients(&self) -> impl Iterator<Item = (C, bool)> {
        self.links.values().map(|link| (link.client, link.is_cut))
    }

    /// Sends bytes of a client, unless its connection is gone.
    pub(crate) fn send_up(&mut self, id: LinkId, bytes: &[u8]) {
        if let Some(link) = self.links.get_mut(&id) {
            link.up.extend_from_slice(bytes);
        }
    }

    /// Sends bytes of the broker, unless the client is gone.
    pub(crate) fn send_down(&mut self, id: LinkId, bytes: &[u8]) {
        if let Some(link) = self.links.get_mut(&id).filter(|link| !link.is_cut) {
            link.down.extend_from_slice(bytes);
        }
    }

    /// Ends the client's side of a connection. Returns the client.
    pub(super) fn cut(&mut self, id: LinkId) -> Option<C> {
        let link = self.links.get_mut(&id)?;
        link.is_cut = true;
        link.down.clear();
        let (client, is_closed) = (link.client, link.closed_ms.is_some());
        if is_closed {
            self.links.remove(&id);
        }
        Some(client)
    }

    /// Ends the broker's side of a connection. What was on its way to the broker is gone.
    pub(super) fn close(&mut self, id: LinkId, at_ms: u64) {
        if let Some(link) = self.links.get_mut(&id) {
            link.closed_ms = Some(at_ms);
            link.up.clear();
        }
    }

    pub(super) fn get(&self, id: LinkId) -> Option<&Link<C>> {
        self.links.get(&id)
    }

    pub(super) fn remove(&mut self, id: LinkId) -> Option<Link<C>> {
        self.links.remove(&id)
    }

    pub(super) fn ids(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// Removes all connections.
    pub(super) fn take(&mut self) -> BTreeMap<LinkId, Link<C>> {
        std::mem::take(&mut self.links)
    }

    /// Takes bytes that arrive at the broker: some of them, from a random connection.
    pub(super) fn draw_up(&mut self, rng: &mut Rng) -> Option<(LinkId, Vec<u8>)> {
        let id = self.draw(rng, |link| !link.up.is_empty() && link.closed_ms.is_none())?;
        let count = self.draw_count(rng, self.links[&id].up.len());
        Some((id, self.take_up(id, count)))
    }

    /// Returns a random connection whose client can receive something, and how many bytes.
    pub(super) fn draw_down(&self, rng: &mut Rng) -> Option<(LinkId, usize)> {
        let id = self.draw(rng, Link::has_input)?;
        Some((id, self.draw_count(rng, self.links[&id].down.len())))
    }

    /// Returns a random connection that is cut, or one that is not.
    pub(super) fn draw_cut(&self, rng: &mut Rng, is_cut: bool) -> Option<LinkId> {
        self.draw(rng, |link| link.is_cut == is_cut)
    }

    /// Stalls a random connection, or lets it go on. Returns it and whether it is stalled now.
    pub(super) fn draw_stalled(&mut self, rng: &mut Rng) -> Option<(LinkId, bool)> {
        let id = self.draw(rng, |link| !link.is_cut && link.closed_ms.is_none())?;
        let link = self.links.get_mut(&id)?;
        link.is_stalled = !link.is_stalled;
        Some((id, link.is_stalled))
    }

    fn draw(&self, rng: &mut Rng, is_it: impl Fn(&Link<C>) -> bool) -> Option<LinkId> {
        let links = self.links.iter().filter(|(_, link)| is_it(link));
        let found: Vec<LinkId> = links.map(|(id, _)| *id).collect();
        (!found.is_empty()).then(|| pick(rng, &found))
    }

    fn draw_count(&self, rng: &mut Rng, len: usize) -> usize {
        if len > 0 && rng.chance(self.plan.pieces) { 1 + rng.below(len as u64) as usize } else { len }
    }

    /// Takes the first bytes that are on their way to the broker.
    pub(super) fn take_up(&mut self, id: LinkId, count: usize) -> Vec<u8> {
        self.links.get_mut(&id).map(|link| take_front(&mut link.up, count)).unwrap_or_default()
    }

    /// Takes the first bytes that are on their way to the client.
    pub(super) fn take_down(&mut self, id: LinkId, count: usize) -> Vec<u8> {
        self.links.get_mut(&id).map(|link| take_front(&mut link.down, count)).unwrap_or_default()
    }
}

fn take_front(bytes: &mut Vec<u8>, count: usize) -> Vec<u8> {
    let rest = bytes.split_off(count.min(bytes.len()));
    std::mem::replace(bytes, rest)
}
