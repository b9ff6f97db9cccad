//! Task management functions (RFC 7143 sections 11.5 and 11.6) and logout (section 11.14).

use crate::pdu::{Invalid, LogoutReason, LogoutRequest, LogoutResult, TaskFunction, TaskRequest, TaskResult};

use super::super::Violation;
use super::{Queued, State, TargetEvent, TargetSession, task::Abort};

/// Number of task management functions that a session performs at a time.
const MAX_FUNCTIONS: usize = 8;

/// The functions that a session performs.
#[derive(Debug, Default)]
pub(super) struct Management(Vec<Function>);

#[derive(Debug)]
struct Function {
    itt: u32,
    function: TaskFunction,
    /// The affected tasks that have not ended.
    tasks: Vec<u32>,
    /// The result, when the owner has performed the function.
    result: Option<TaskResult>,
}

impl TargetSession {
    /// The owner has performed the function of [`TargetEvent::Manage`]. The response is sent when the session's
    /// affected tasks have ended too. After a successful TARGET COLD RESET the connection closes.
    pub fn managed(&mut self, itt: u32, result: TaskResult) {
        if let Some(function) = self.management.0.iter_mut().find(|f| f.itt == itt) {
            function.result = Some(result);
            self.answer_functions();
        }
    }

    pub(super) fn manage(&mut self, request: &TaskRequest) {
        let TaskRequest { itt, function, lun, .. } = *request;
        if self.management.0.len() >= MAX_FUNCTIONS || self.management.0.iter().any(|f| f.itt == itt) {
            self.queue.push_back(Queued::Task { itt, result: TaskResult::REJECTED });
            return;
        }
        let (tasks, result) = match function {
            TaskFunction::ABORT_TASK => self.abort_task(request),
            TaskFunction::ABORT_TASK_SET
            | TaskFunction::CLEAR_TASK_SET
            | TaskFunction::LOGICAL_UNIT_RESET
            | TaskFunction::TARGET_WARM_RESET
            | TaskFunction::TARGET_COLD_RESET => {
                let all =
                    matches!(function, TaskFunction::TARGET_WARM_RESET | TaskFunction::TARGET_COLD_RESET);
                let tasks =
                    self.tasks.values().filter(|t| all || t.command.lun == lun).map(|t| t.itt).collect();
                self.events.push_back(TargetEvent::Manage { itt, function, lun });
                (tasks, None)
            }
            TaskFunction::TASK_REASSIGN => (Vec::new(), Some(TaskResult::NO_REASSIGNMENT)),
            _ => (Vec::new(), Some(TaskResult::NOT_SUPPORTED)),
        };
        let tasks = self.abort_all(tasks);
        self.management.0.push(Function { itt, function, tasks, result });
        self.answer_functions();
    }

    /// The task that ABORT TASK affects, and the result. A command that has not arrived is accounted for, so that it
    /// is not executed (RFC 7143 section 11.6.1).
    fn abort_task(&mut self, request: &TaskRequest) -> (Vec<u32>, Option<TaskResult>) {
        let found = self.tasks.get(&request.referenced).is_some_and(|t| t.command.lun == request.lun);
        if found {
            (vec![request.referenced], Some(TaskResult::COMPLETE))
        } else if self.window.skip(request.ref_cmd_sn, request.numbers.cmd_sn) {
            (Vec::new(), Some(TaskResult::COMPLETE))
        } else {
            (Vec::new(), Some(TaskResult::NO_TASK))
        }
    }

    /// Aborts tasks and returns those that have not ended.
    fn abort_all(&mut self, mut tasks: Vec<u32>) -> Vec<u32> {
        let mut removed = Vec::new();
        tasks.retain(|&itt| match self.tasks.get_mut(&itt).map(super::task::Task::abort) {
            Some(Abort::Confirm) => {
                self.cancel_data_events(itt);
                self.events.push_back(TargetEvent::Abort { itt });
                true
            }
            Some(Abort::Remove) => {
                self.events.push_back(TargetEvent::Abort { itt });
                removed.push(itt);
                false
            }
            Some(Abort::Aborted) => true,
            Some(Abort::Finishing) | None => false,
        });
        for itt in removed {
            self.tasks.remove(&itt);
        }
        tasks
    }

    /// Continues what waited for the end of a task.
    pub(super) fn task_ended(&mut self, itt: u32) {
        for function in &mut self.management.0 {
            function.tasks.retain(|&task| task != itt);
        }
        self.answer_functions();
        self.finish_logout();
    }

    fn answer_functions(&mut self) {
        let mut reset = false;
        let queue = &mut self.queue;
        self.management.0.retain(|f| match f.result {
            Some(result) if f.tasks.is_empty() => {
                queue.push_back(Queued::Task { itt: f.itt, result });
                reset |= f.function == TaskFunction::TARGET_COLD_RESET && result == TaskResult::COMPLETE;
                false
            }
            _ => true,
        });
        if reset && self.state == State::FullFeature {
            self.close();
        }
    }

    pub(super) fn logout(&mut self, request: &LogoutRequest) -> Result<(), Violation> {
        let itt = request.itt;
        let result = match request.reason {
            LogoutReason::SESSION => LogoutResult::CLOSED,
            LogoutReason::CONNECTION if request.cid == self.config.cid => LogoutResult::CLOSED,
            LogoutReason::CONNECTION => LogoutResult::NO_CID,
            LogoutReason::RECOVERY => LogoutResult::NO_RECOVERY,
            _ => return Err(Invalid::Field("logout reason").into()),
        };
        if result != LogoutResult::CLOSED {
            self.queue.push_back(Queued::Logout { itt, result });
            return Ok(());
        }
        self.state = State::LoggingOut { itt };
        self.management.0.clear();
        let tasks = self.tasks.keys().copied().collect();
        self.abort_all(tasks);
        self.finish_logout();
        Ok(())
    }

    /// Answers a logout when no task is left but those whose responses are in the queue.
    fn finish_logout(&mut self) {
        let State::LoggingOut { itt } = self.state else {
            return;
        };
        if self.tasks.values().all(|task| task.finished().is_some()) {
            self.queue.push_back(Queued::Logout { itt, result: LogoutResult::CLOSED });
            self.close();
        }
    }
}
