//! The lead of a shard as a state machine: which kind of thread leads, and which one comes next.
//!
//! The machine is pure. The caller holds the lock of the lead, passes an event, and does what the
//! answer says. Followers stay on a list of the caller's, and the machine is told whether there are
//! any.
//!
//! ```text
//! Free        -Wait, Visit, VisitPolitely-> Application   it takes the lead
//! Free        -Accompany------------------> Companion     if no thread follows
//! Free        -Watch----------------------> Background    if no thread follows
//! Free        -Call-----------------------> Promised      if a thread follows, which is woken
//! Promised    -Wait, Visit, VisitPolitely-> Application   whichever thread comes first
//! Promised    -Lapse----------------------> Free          the thread did not come
//! Application -Leave----------------------> Free
//! Background  -Wait, Visit----------------> Background    asked to leave
//! Background  -Unfollow-------------------> Background    no longer asked, if no thread follows
//! Background  -Leave----------------------> Free          or Promised, if a thread asked or follows
//! Background  -Doze-----------------------> Sentry        unless it was asked to leave
//! Sentry      -Wait-----------------------> Application   it takes the lead from the sleeper
//! Sentry      -Visit----------------------> Background    asked to leave
//! Sentry      -Woke-----------------------> Background
//! Application -GiveBack-------------------> Sentry        the background thread still sleeps
//! Companion   as Background
//! ```
//!
//! A thread that waits and cannot lead follows. A leader that was asked to leave does so at the end
//! of its turn, and an application's thread leaves when it has its events. The first follower is
//! woken by the background thread or the companion that leaves, or by the background thread when no
//! thread has led for a tick. So while a thread follows, either a thread leads, or a thread is on
//! its way to the lead, or the background thread is about to look.
//!
//! The background thread may sleep in the reactor in any state but that of its own turns. It then
//! leads if it wakes in the state `Sentry`. In any other state it leaves what it has found to the leader.

/// The thread that has the lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(super) enum Lead {
    /// No thread. The next one that wants to lead does.
    Free,
    /// No thread, but one is on its way to take it.
    Promised,
    /// A thread of the program that waits in this shard, or runs a turn in passing.
    Application,
    /// The background thread.
    Background {
        /// A thread of the program wants the lead.
        asked: bool,
    },
    /// A thread that waits in another shard.
    Companion {
        /// A thread of the program wants the lead.
        asked: bool,
    },
    /// No thread. The background thread sleeps in the reactor, and leads as soon as it wakes.
    Sentry,
}

/// What happens to the lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeadEvent {
    /// A thread of the program wants to wait in this shard: it leads, or it follows.
    Wait,
    /// A thread of the program wants to lead for some turns.
    Visit,
    /// The same, but the thread leaves the lead to any other thread.
    VisitPolitely,
    /// A thread that waits in another shard wants to lead here.
    Accompany,
    /// The background thread wants to lead.
    Watch,
    /// The background thread found no leader for a tick, and calls the first follower.
    Call,
    /// The leader leaves.
    Leave,
    /// The leader leaves the lead to the background thread, which sleeps in the reactor.
    GiveBack,
    /// The background thread, which leads, is about to sleep in the reactor.
    Doze,
    /// The background thread has slept in the reactor, and something has woken it.
    Woke,
    /// A thread that followed has its events, or no time left.
    Unfollow,
    /// The thread to which the lead was promised has had its time.
    Lapse,
}

/// What the thread with the event must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeadAnswer {
    /// Take the reactor, and lead.
    Take,
    /// Do without the lead.
    Refuse,
    /// Do without the lead. The leader leaves it soon: it must be woken.
    Ask,
    /// Put the reactor back, if the thread led. Nothing else happens.
    Done,
    /// The same, and wake the first follower, which takes the lead.
    WakeFollower,
}

impl Lead {
    /// The state as a number, for threads that read it without the lock.
    pub(super) fn to_bits(self) -> u8 {
        match self {
            Lead::Free => 0,
            Lead::Promised => 1,
            Lead::Application => 2,
            Lead::Background { asked } => 4 + u8::from(asked),
            Lead::Companion { asked } => 6 + u8::from(asked),
            Lead::Sentry => 8,
        }
    }

    /// The state with this number.
    pub(super) fn from_bits(bits: u8) -> Lead {
        let asked = bits & 1 != 0;
        match bits {
            0 => Lead::Free,
            1 => Lead::Promised,
            2 | 3 => Lead::Application,
            4 | 5 => Lead::Background { asked },
            6 | 7 => Lead::Companion { asked },
            _ => Lead::Sentry,
        }
    }

    /// True if no thread leads, and none sleeps in the reactor to lead when something comes.
    pub(super) fn is_free(self) -> bool {
        matches!(self, Lead::Free | Lead::Promised)
    }

    /// True if the leader must leave at the end of its turn.
    pub(super) fn must_leave(self) -> bool {
        matches!(self, Lead::Background { asked: true } | Lead::Companion { asked: true })
    }

    /// The next state, and what the thread must do. `follow`: threads follow; of a thread that waits
    /// itself, other threads. None: the event cannot happen in this state.
    pub(super) fn next(self, event: LeadEvent, follow: bool) -> Option<(Lead, LeadAnswer)> {
        use Lead::{Application, Background, Companion, Free, Promised, Sentry};
        use LeadAnswer::{Ask, Done, Refuse, Take, WakeFollower};
        use LeadEvent::{
            Accompany, Call, Doze, GiveBack, Lapse, Leave, Unfollow, Visit, VisitPolitely, Wait,
            Watch, Woke,
        };
        Some(match (self, event) {
            (Sentry, Wait) => (Application, Take),
            (Sentry, Visit) => (Background { asked: true }, Ask),
            (Sentry, VisitPolitely | Accompany) => (self, Refuse),
            (Sentry, Woke) => (Background { asked: false }, Take),
            (Sentry, Unfollow | Lapse) => (self, Done),
            // The background thread sleeps, and no other thread has the reactor.
            (Sentry, Watch | Call | Leave | GiveBack | Doze) => return None,
            (Application, GiveBack) if !follow => (Sentry, Done),
            (Background { asked: false }, Doze) => (Sentry, Done),
            (Background { .. }, Woke) => (self, Take),
            (_, GiveBack | Doze | Woke) => (self, Refuse),
            (Free | Promised, Wait | Visit | VisitPolitely) => (Application, Take),
            (Free, Accompany) if !follow => (Companion { asked: false }, Take),
            (Free, Watch) if !follow => (Background { asked: false }, Take),
            (Free, Call) if follow => (Promised, WakeFollower),
            (Free, Lapse) | (Promised, Lapse) => (Free, Done),
            (Free | Promised, Accompany | Watch | Call) => (self, Refuse),
            (Free | Promised, Leave) => return None,
            (Application, Leave) => (Free, Done),
            (Background { asked: false }, Wait | Visit) => (Background { asked: true }, Ask),
            (Companion { asked: false }, Wait | Visit) => (Companion { asked: true }, Ask),
            (Background { .. } | Companion { .. }, Leave) if follow => (Promised, WakeFollower),
            (Background { asked } | Companion { asked }, Leave) => {
                (if asked { Promised } else { Free }, Done)
            }
            (Background { .. }, Unfollow) if !follow => (Background { asked: false }, Done),
            (Companion { .. }, Unfollow) if !follow => (Companion { asked: false }, Done),
            (_, Unfollow | Lapse) => (self, Done),
            (Application | Background { .. } | Companion { .. }, _) => (self, Refuse),
        })
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    const LEADS: [Lead; 8] = [
        Lead::Free,
        Lead::Promised,
        Lead::Application,
        Lead::Background { asked: false },
        Lead::Background { asked: true },
        Lead::Companion { asked: false },
        Lead::Companion { asked: true },
        Lead::Sentry,
    ];
    const EVENTS: [LeadEvent; 12] = [
        LeadEvent::Wait,
        LeadEvent::Visit,
        LeadEvent::VisitPolitely,
        LeadEvent::Accompany,
        LeadEvent::Watch,
        LeadEvent::Call,
        LeadEvent::Leave,
        LeadEvent::Unfollow,
        LeadEvent::Lapse,
        LeadEvent::GiveBack,
        LeadEvent::Doze,
        LeadEvent::Woke,
    ];

    fn short(lead: Lead) -> &'static str {
        match lead {
            Lead::Free => "free",
            Lead::Promised => "promised",
            Lead::Application => "app",
            Lead::Background { asked: false } => "back",
            Lead::Background { asked: true } => "back?",
            Lead::Companion { asked: false } => "comp",
            Lead::Companion { asked: true } => "comp?",
            Lead::Sentry => "sentry",
        }
    }

    /// A state in every event: `=` where nothing changes and the thread does without the lead.
    fn row(lead: Lead, follow: bool) -> String {
        let cell = |event| match lead.next(event, follow) {
            None => "never".to_owned(),
            Some((next, LeadAnswer::Refuse)) => {
                assert_eq!(next, lead, "{event:?} is refused");
                "=".to_owned()
            }
            Some((next, answer)) => format!("{answer:?}:{}", short(next)),
        };
        EVENTS.map(cell).join(" ")
    }

    #[test]
    fn every_state_answers_every_event() {
        let rows = |follow| LEADS.map(|lead| row(lead, follow));
        let take = "Take:app Take:app Take:app";
        let sentry = "Take:app Ask:back? = = never never never Done:sentry Done:sentry never never \
                      Take:back";
        assert_eq!(
            rows(false),
            [
                format!("{take} Take:comp Take:back = never Done:free Done:free = = ="),
                format!("{take} = = = never Done:promised Done:free = = ="),
                "= = = = = = Done:free Done:app Done:app Done:sentry = =".to_owned(),
                "Ask:back? Ask:back? = = = = Done:free Done:back Done:back = Done:sentry Take:back"
                    .to_owned(),
                "= = = = = = Done:promised Done:back Done:back? = = Take:back?".to_owned(),
                "Ask:comp? Ask:comp? = = = = Done:free Done:comp Done:comp = = =".to_owned(),
                "= = = = = = Done:promised Done:comp Done:comp? = = =".to_owned(),
                sentry.to_owned(),
            ]
        );
        assert_eq!(
            rows(true),
            [
                format!("{take} = = WakeFollower:promised never Done:free Done:free = = ="),
                format!("{take} = = = never Done:promised Done:free = = ="),
                "= = = = = = Done:free Done:app Done:app = = =".to_owned(),
                "Ask:back? Ask:back? = = = = WakeFollower:promised Done:back Done:back = \
                 Done:sentry Take:back"
                    .to_owned(),
                "= = = = = = WakeFollower:promised Done:back? Done:back? = = Take:back?".to_owned(),
                "Ask:comp? Ask:comp? = = = = WakeFollower:promised Done:comp Done:comp = = ="
                    .to_owned(),
                "= = = = = = WakeFollower:promised Done:comp? Done:comp? = = =".to_owned(),
                sentry.to_owned(),
            ]
        );
    }

    #[test]
    fn a_state_fits_into_a_word() {
        for lead in LEADS {
            assert_eq!(Lead::from_bits(lead.to_bits()), lead);
        }
    }
}
