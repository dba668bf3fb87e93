//! The threads that hash passwords.
//!
//! A hash takes tens of milliseconds and 19 MiB, so only as many run at once as there are threads, and only so many
//! wait. Which user is unknown does not show: its log-in costs what that of a user costs that a keyed hash of the name
//! picks, whatever kinds of hashes the users have.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_security::{PasswordHash, SALT_BYTES, ScramAlgorithm, SecurityState, User};

/// Work for a thread.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A bounded pool of threads. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Pool {
    jobs: SyncSender<Job>,
}

impl Pool {
    /// Starts `threads` threads of this name, for which up to `waiting_max` jobs wait.
    ///
    /// # Errors
    /// A thread does not start.
    pub(crate) fn start(name: &str, threads: usize, waiting_max: usize) -> io::Result<Self> {
        let (jobs, receiver) = sync_channel::<Job>(waiting_max);
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..threads {
            let receiver = Arc::clone(&receiver);
            let name = format!("{name}-{number}");
            std::thread::Builder::new().name(name).spawn(move || run_jobs(&receiver))?;
        }
        Ok(Self { jobs })
    }

    /// Runs a job on a thread. Returns it if too many wait.
    pub(crate) fn submit(&self, job: Job) -> Result<(), Job> {
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }
}

fn run_jobs(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        job();
    }
}

/// The user that an unknown user costs as much as; `None` if there is none.
fn stand_in<'a>(state: &'a SecurityState, secret: &[u8], name: &str) -> Option<&'a Arc<User>> {
    let hash = ScramAlgorithm::Sha256.hmac(secret, name.as_bytes());
    let number = u64::from_be_bytes(hash[..8].try_into().expect("a hash has 32 bytes"));
    let count = state.all_users().count();
    let at = (count > 0).then(|| (number % count as u64) as usize)?;
    state.all_users().nth(at)
}

/// Verifies a password. `None` for an unknown or disabled user and for a wrong password, after the same time.
pub(crate) fn verify(state: &SecurityState, secret: &[u8], name: &str, password: &[u8]) -> Option<Arc<User>> {
    let user = state.user(name);
    let Some(hashed) = user.or_else(|| stand_in(state, secret, name)) else {
        // Without users, nobody can log in, which is no secret.
        return None;
    };
    if hashed.password.is_none() && hashed.scram_sha_256.is_none() && hashed.scram_sha_512.is_none() {
        // A user without verifiers would be recognized by its fast answer.
        drop(PasswordHash::derive(password, [0; SALT_BYTES]));
        return None;
    }
    let is_right = hashed.verify_password(password);
    user.filter(|user| is_right && !user.disabled).cloned()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use mainstem_security::{Change, Salts, Settings};

    use super::*;

    #[test]
    fn only_the_right_password_of_a_user_that_is_not_disabled_is_accepted() {
        let mut state = SecurityState::new(Settings::default());
        assert!(verify(&state, b"key", "alice", b"secret").is_none());
        for (name, disabled) in [("alice", false), ("bob", true)] {
            let mut user = User::new(name).unwrap();
            user.set_password(b"secret", &Salts([[1; 16]; 3])).unwrap();
            user.disabled = disabled;
            state.apply(&Change::PutUser(Arc::new(user)));
        }
        state.apply(&Change::PutUser(Arc::new(User::new("carol").unwrap())));
        for (name, password, expected) in [
            ("alice", "secret", true),
            ("alice", "wrong", false),
            ("bob", "secret", false),
            ("carol", "secret", false),
            ("mallory", "secret", false),
            ("trudy", "secret", false),
        ] {
            let user = verify(&state, b"key", name, password.as_bytes());
            assert_eq!(user.map(|user| user.name.to_string()), expected.then(|| name.to_owned()), "{name}");
        }
    }

    #[test]
    fn the_pool_runs_jobs_and_bounds_those_that_wait() {
        let pool = Pool::start("test", 1, 2).unwrap();
        let (release, blocked) = channel::<()>();
        let (done, finished) = channel();
        let (started, is_running) = channel();
        let block = move || {
            started.send(()).unwrap();
            blocked.recv().unwrap();
        };
        pool.submit(Box::new(block)).ok().unwrap();
        is_running.recv().unwrap();
        for number in 0..2 {
            let done = done.clone();
            pool.submit(Box::new(move || done.send(number).unwrap())).ok().unwrap();
        }
        assert!(pool.submit(Box::new(|| {})).is_err());
        release.send(()).unwrap();
        assert_eq!((finished.recv(), finished.recv()), (Ok(0), Ok(1)));
    }
}
