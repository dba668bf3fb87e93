//! The open-loop load generator behind `mainstem bench`.
