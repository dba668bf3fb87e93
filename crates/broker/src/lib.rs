//! Routing, delivery, sessions and retained messages: what happens between the doors.
