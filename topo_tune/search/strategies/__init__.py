"""Search strategies behind one seam."""
