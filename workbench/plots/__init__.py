"""Figures, one function each: of runs (`curves`), of tables (`tables`), and tables as coloured
cells (`maps`), in one house style (`style`).
"""

from workbench.plots.curves import accuracy_by_level as accuracy_by_level
from workbench.plots.curves import by_level as by_level
from workbench.plots.curves import compared as compared
from workbench.plots.curves import learning_curve as learning_curve
from workbench.plots.curves import overview as overview
from workbench.plots.curves import sampled_and_greedy as sampled_and_greedy
from workbench.plots.curves import watch as watch
from workbench.plots.curves import zero_gradient as zero_gradient
from workbench.plots.maps import correlations as correlations
from workbench.plots.maps import heatmap as heatmap
from workbench.plots.maps import transitions as transitions
from workbench.plots.style import heading as heading
from workbench.plots.style import save as save
from workbench.plots.style import style as style
from workbench.plots.tables import differences as differences
from workbench.plots.tables import prices as prices
from workbench.plots.tables import stacked as stacked
from workbench.plots.trials import trial as trial
from workbench.plots.trials import tuning_curves as tuning_curves
