"""What every example must answer, as Spark SQL over its whole input at once: no batches, no state, no kernel of ours.

Runs on the driver. The answers share nothing with the runtime but the meaning of an application, so that tests can hold
the runtime against them; the same definitions serve the benches as Spark's side.
"""

from holdfast_lab.sql_answers.inputs import Inputs, input_frames
from holdfast_lab.sql_answers.registry import ANSWERS, answer
from holdfast_lab.sql_answers.windows import Answer

__all__ = ["ANSWERS", "Answer", "Inputs", "answer", "input_frames"]
