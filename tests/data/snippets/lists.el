;;; lists.el --- Lists that don't nest -*- lexical-binding: t -*-

(defvar lists-default '(1 2 3)
  "The list that is shown if there isn't another one.")

(defun lists-sum (list)
  "Return the sum of LIST's numbers."
  (apply #'+ (seq-filter #'numberp list)))

(defun lists-show (&optional list)
  "Show LIST, or `lists-default'."
  (interactive)
  (let ((shown (or list lists-default)))
    (if (null shown)
        (message "nothing")
      (message "%s (%d)" (mapconcat #'prin1-to-string shown ", ")
               (lists-sum shown)))))

(provide 'lists)
