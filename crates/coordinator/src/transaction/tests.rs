//! Tests of the transaction coordinator: single cases, and a simulation of clients, partitions, crashes and time.

mod cases;
mod model;
