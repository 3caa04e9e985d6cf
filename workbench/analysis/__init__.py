"""Numbers from records: comparisons of arms, costs and intervals."""

from workbench.analysis import comparisons as comparisons
from workbench.analysis import cost as cost
from workbench.analysis import curves as curves
from workbench.analysis import forecast as forecast
from workbench.analysis import intervals as intervals
from workbench.analysis import metrics as metrics
from workbench.analysis import runs as runs
from workbench.analysis import sequential as sequential
from workbench.analysis import targets as targets
