//! The coordinator against a world of clients, partitions, lost power and time; and case by case.

mod cases;
mod world;
