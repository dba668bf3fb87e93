//! Shards, sockets, mailboxes and timers: the loop under every door.
