//! Tests from outside: the real binary, driven over real sockets.
