//! What the broker keeps in its journals: the format, read from logs that were kept, and stores that are full or slow.
//!
//! | file | holds |
//! |---|---|
//! | `broker` | a broker without sockets over stores that are kept, and its clients |
//! | `connect` | what a CONNECT waits for |
//! | `coverage` | which entries there are, read apart from the broker's own code |
//! | `faults` | what clients see of stores that are full, and of an end between two of them |
//! | `format` | the format as it was written, and as it is |
//! | `order` | what one client publishes, whichever shards its sessions live on |
//! | `story` | what happened before the broker was killed |

mod broker;
mod connect;
mod coverage;
mod faults;
mod format;
mod order;
mod story;
