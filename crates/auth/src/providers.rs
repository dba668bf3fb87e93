//! Where users come from besides the user store.
//!
//! Providers form a chain, in this order; each allows, denies, or ignores what a client presents:
//!
//! | provider | allows | denies | ignores |
//! |---|---|---|---|
//! | certificate | a user that the certificate names | a certificate that names none, a disabled user | no certificate, a listener that takes no users from them; a password, if that decides |
//! | user store | the password of a user | everything else | nothing |

use std::collections::BTreeMap;

use crate::certificate::CertificateUsers;

/// Where users come from besides the user store.
#[derive(Debug, Default)]
pub struct Providers {
    /// The listeners that take users from client certificates, by name.
    pub certificates: BTreeMap<String, CertificateUsers>,
}

impl Providers {
    /// Whether any names users.
    pub(crate) fn have_users(&self) -> bool {
        !self.certificates.is_empty()
    }
}
